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

/// Computes the values of one vocabulary shard, the ids [first_id, first_id + ids).
/// Shapes: logits rows x columns, of which the first `ids` count; targets (int64) rows; parts rows
/// x kCrossEntropyParts in compute_dtype() of logits.
void cross_entropy_parts(Context& context, const ConstTensorView& logits,
                         const ConstTensorView& targets, std::int64_t first_id, std::int64_t ids,
                         const TensorView& parts);

/// Combines the shards: sums over shards in the order of `steps`, which end in part 0. log_sums[r]
/// is log(sum of exp(logit)) over the whole vocabulary. A row is correct where its target is the
/// first of the maximum logits; a target outside [0, vocabulary) that is not kUncounted is a bad
/// label. Shapes: parts
/// shards x rows x kCrossEntropyParts, log_sums rows, of one dtype; targets (int64) rows; sums
/// kLossElements.
void combine_cross_entropy(Context& context, std::span<const ReductionStep> steps,
                           const ConstTensorView& parts, const ConstTensorView& targets,
                           std::int64_t vocabulary, std::int64_t valid_rows,
                           const TensorView& log_sums, const TensorView& sums);

/// dlogits = gradient_scale (exp(logit - log_sum) - onehot(target)); 0 in rows from valid_rows on,
/// in uncounted rows and in columns from `ids` on.
/// In place (dlogits is logits) is allowed. Shapes: as cross_entropy_parts; dlogits as logits.
void cross_entropy_gradient(Context& context, const ConstTensorView& logits,
                            const ConstTensorView& targets, std::int64_t first_id, std::int64_t ids,
                            const ConstTensorView& log_sums, std::int64_t valid_rows,
                            double gradient_scale, const TensorView& dlogits);

}  // namespace strata::ops
