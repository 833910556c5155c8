#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/context.hpp"

namespace strata::ops {

/// Sums over the valid rows of a microbatch.
struct LossSums {
  /// Sum of the rows' losses, added in row order.
  double loss = 0.0;
  /// Rows whose largest logit (the first among equals) is the label's.
  std::int64_t correct = 0;
};

/// The loss -log(softmax(logits)[label]) of each row, and dlogits = gradient_scale (softmax(logits)
/// - onehot(label)). Rows from valid_rows on give no loss and a zero gradient. An empty dlogits is
/// not computed; in place (dlogits is logits) is allowed.
/// Shapes: logits, dlogits rows x classes (any leading dimensions count as rows), labels (int64)
/// rows. Pre: 0 <= valid_rows <= rows.
/// Throws: Error(kData) for a label outside [0, classes).
[[nodiscard]] LossSums cross_entropy(Context& context, const ConstTensorView& logits,
                                     const ConstTensorView& labels, std::int64_t valid_rows,
                                     double gradient_scale, const TensorView& dlogits);

/// The mean over a row's outputs of (prediction - target)^2, and dprediction = gradient_scale 2
/// (prediction - target) / outputs. Rows from valid_rows on give no loss and a zero gradient. An
/// empty dprediction is not computed; in place (dprediction is prediction) is allowed. Counts
/// nothing as correct.
/// Shapes: prediction, target, dprediction equal, rows x outputs (the first dimension is the rows).
[[nodiscard]] LossSums mean_squared_error(Context& context, const ConstTensorView& prediction,
                                          const ConstTensorView& target, std::int64_t valid_rows,
                                          double gradient_scale, const TensorView& dprediction);

}  // namespace strata::ops
