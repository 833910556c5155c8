#pragma once

#include <cstdint>
#include <span>

#include "strata/ops/loss.hpp"
#include "strata/ops/split_cross_entropy.hpp"

#include "tensors.hpp"

// Losses as tests ask for them: what an operation wrote, as its value.
namespace strata::ops::test {

/// What `operation` writes to the tensor that it is given.
template <typename Operation>
LossSums sums_of(const Operation& operation) {
  // All bits set: every element must be written.
  Tensor<std::int64_t> sums({kLossElements});
  std::fill(sums.elements().begin(), sums.elements().end(), -1);
  operation(sums.view());
  return loss_sums_of(sums.view());
}

inline LossSums cross_entropy_sums(Context& context, const ConstTensorView& logits,
                                   const ConstTensorView& labels, std::int64_t valid_rows,
                                   double gradient_scale, const TensorView& dlogits) {
  return sums_of([&](const TensorView& sums) {
    cross_entropy(context, logits, labels, valid_rows, gradient_scale, dlogits, sums);
  });
}

inline LossSums squared_error_sums(Context& context, const ConstTensorView& prediction,
                                   const ConstTensorView& target, std::int64_t valid_rows,
                                   double gradient_scale, const TensorView& dprediction,
                                   const ConstTensorView& units = {}) {
  return sums_of([&](const TensorView& sums) {
    mean_squared_error(context, prediction, target, valid_rows, gradient_scale, dprediction, sums,
                       units);
  });
}

}  // namespace strata::ops::test
