#pragma once

#include <cstdint>
#include <span>

#include "strata/core/tensor.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::ops {

class Context;

/// Values of one vocabulary shard for a row: the maximum logit; the sum of exp(logit - maximum);
/// the target's logit, or 0 where another shard has the target; and 1 where the target is the first
/// of the shard's maximum logits, else 0 (0 with NaNs).
inline constexpr std::int64_t kCrossEntropyParts = 4;
/// With the sum of the logits behind them, for LossTerms::label_smoothing.
inline constexpr std::int64_t kSmoothedParts = 5;
[[nodiscard]] constexpr std::int64_t cross_entropy_width(const LossTerms& terms) {
  return terms.label_smoothing > 0.0 ? kSmoothedParts : kCrossEntropyParts;
}

/// Computes the values of one vocabulary shard, the ids [first_id, first_id + ids).
/// Shapes: logits rows x columns, of which the first `ids` count; targets (int64) rows; parts rows
/// x kCrossEntropyParts or kSmoothedParts in compute_dtype() of logits.
void cross_entropy_parts(Context& context, const ConstTensorView& logits,
                         const ConstTensorView& targets, std::int64_t first_id, std::int64_t ids,
                         const TensorView& parts);

/// Combines the shards: the sums of exponentials in the order of `steps`, which end in part 0,
/// those of logits from the first shard to the last. log_sums[r] is log(sum of exp(logit)) over the
/// whole vocabulary. A row is correct where its target is the first of the maximum logits; a target
/// outside [0, vocabulary) that is not kUncounted is a bad label. Shapes: parts shards x rows x
/// kCrossEntropyParts or kSmoothedParts, log_sums rows, of one dtype; targets (int64) rows; sums
/// kLossElements; samples as cross_entropy()'s. Pre: label_smoothing is 0, or the parts are
/// kSmoothedParts.
void combine_cross_entropy(Context& context, std::span<const ReductionStep> steps,
                           const ConstTensorView& parts, const ConstTensorView& targets,
                           std::int64_t vocabulary, std::int64_t valid_rows,
                           const TensorView& log_sums, const TensorView& sums,
                           const LossTerms& terms = {}, const TensorView& samples = {});

/// dlogits = gradient_scale ((1 + 2 z log_sum) exp(logit - log_sum) - (1 - s) onehot(target) - s/K)
/// with the `terms` z and s and a `vocabulary` of K; 0 in rows from valid_rows on, in uncounted
/// rows and in columns from `ids` on. Where `row_scales` is not empty, a row's gradient is
/// multiplied by its scale. In place (dlogits is logits) is allowed. Shapes: as
/// cross_entropy_parts; dlogits as logits; row_scales as log_sums.
void cross_entropy_gradient(Context& context, const ConstTensorView& logits,
                            const ConstTensorView& targets, std::int64_t first_id, std::int64_t ids,
                            const ConstTensorView& log_sums, std::int64_t valid_rows,
                            double gradient_scale, const TensorView& dlogits,
                            const LossTerms& terms = {}, std::int64_t vocabulary = 1,
                            const ConstTensorView& row_scales = {});

}  // namespace strata::ops
