#pragma once

#include <cstdint>
#include <span>

#include "strata/core/tensor.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::ops {

class Context;

/// Values that one shard of the vocabulary gives for a row: its largest logit, the sum of
/// exp(logit - largest), the target's logit, or 0 where the target lies in another shard, and 1
/// where the target's is the first of the shard's logits that is as large as the largest, else 0;
/// among NaNs it is 0.
inline constexpr std::int64_t kCrossEntropyParts = 4;

/// What one shard of the vocabulary, the ids [first_id, first_id + columns of logits), gives.
/// Shapes: logits rows x ids; targets (int64) rows; parts rows x kCrossEntropyParts in
/// compute_dtype() of logits.
void cross_entropy_parts(Context& context, const ConstTensorView& logits,
                         const ConstTensorView& targets, std::int64_t first_id,
                         const TensorView& parts);

/// Brings the shards together: sums over shards by the additions `steps`, which end in part 0.
/// log_sums[r] is log(sum of exp(logit)) over the whole vocabulary. A row is right where
/// its target's is the first of the largest logits; a target outside [0, vocabulary) is a bad
/// label. Shapes: parts shards x rows x kCrossEntropyParts, log_sums rows, of one dtype; targets
/// (int64) rows; sums kLossElements.
void combine_cross_entropy(Context& context, std::span<const ReductionStep> steps,
                           const ConstTensorView& parts, const ConstTensorView& targets,
                           std::int64_t vocabulary, std::int64_t valid_rows,
                           const TensorView& log_sums, const TensorView& sums);

/// dlogits = gradient_scale (exp(logit - log_sum) - onehot(target)); rows from valid_rows on give
/// 0. In place (dlogits is logits) is allowed. Shapes: as cross_entropy_parts; dlogits as logits.
void cross_entropy_gradient(Context& context, const ConstTensorView& logits,
                            const ConstTensorView& targets, std::int64_t first_id,
                            const ConstTensorView& log_sums, std::int64_t valid_rows,
                            double gradient_scale, const TensorView& dlogits);

}  // namespace strata::ops
