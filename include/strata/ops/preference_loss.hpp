#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// Of a pair of documents: the difference of their log-likelihoods and the margin.
inline constexpr std::int64_t kPairElements = 2;

/// The loss of direct preference optimization for samples of a pair each: the document that begins
/// with the sample is the chosen one, the other is the rejected one. With the difference d, the log
/// of the chosen document's probability less that of the rejected one, over counted targets, and
/// the margin m = beta (d - reference), a sample's loss is -log(sigmoid(m)). A row's scale is
/// beta sigmoid(-m), of the rejected document less than 0, and 0 where its target does not count:
/// the row's cross-entropy times its scale has the gradient of the loss. Source: Rafailov et
/// al., "Direct preference optimization", arXiv 2305.18290, equation 7. `sums` has what
/// combine_cross_entropy() found of bad targets, which stays; it gets the loss of the valid
/// samples, of these the number with a positive margin as `correct`, and all as `counted`; samples
/// from valid_samples on have scales of 0. Shapes: parts shards x rows x kCrossEntropyParts or
/// kSmoothedParts, log_sums and row_scales rows, of one dtype; targets (int64) and document_starts
/// (uint32) samples x tokens; references (float64) samples; pairs (float64) samples x
/// kPairElements; sums kLossElements.
void preference_loss(Context& context, const ConstTensorView& parts,
                     const ConstTensorView& log_sums, const ConstTensorView& targets,
                     const ConstTensorView& document_starts, const ConstTensorView& references,
                     double beta, std::int64_t vocabulary, std::int64_t valid_samples,
                     const TensorView& row_scales, const TensorView& pairs, const TensorView& sums);

}  // namespace strata::ops
