#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {

class Context;

/// Images whose channels are normalised in groups. Pre: groups divide channels.
struct GroupNormShape {
  std::int64_t images = 1;
  std::int64_t pixels = 1;
  std::int64_t channels = 1;
  std::int64_t groups = 1;

  [[nodiscard]] Shape tensor() const { return {images, pixels, channels}; }
};

/// y = (x - mean) rstd weight + bias, with the mean and rstd = 1 / sqrt(variance + epsilon) of each
/// image's group of channels over all its pixels. In place (y is x) is not allowed.
/// Shapes: x, y shape.tensor() or as many elements; weight, bias channels; mean, rstd images x
/// groups in compute_dtype() of x. Source: Wu, He, "Group normalization", arXiv 1803.08494.
void group_norm_forward(Context& context, const GroupNormShape& shape, const ConstTensorView& x,
                        const ConstTensorView& weight, const ConstTensorView& bias, double epsilon,
                        const TensorView& y, const TensorView& mean, const TensorView& rstd);

/// dx from dy. In place (dx is dy) is allowed.
void group_norm_backward_input(Context& context, const GroupNormShape& shape,
                               const ConstTensorView& x, const ConstTensorView& weight,
                               const ConstTensorView& mean, const ConstTensorView& rstd,
                               const ConstTensorView& dy, const TensorView& dx);

/// dweight = sum of dy xhat, dbias = sum of dy, images added in order.
/// Shapes: dweight, dbias channels in compute_dtype() of x.
void group_norm_backward_weight(Context& context, const GroupNormShape& shape,
                                const ConstTensorView& x, const ConstTensorView& mean,
                                const ConstTensorView& rstd, const ConstTensorView& dy,
                                const TensorView& dweight, const TensorView& dbias,
                                Accumulate accumulate);

}  // namespace strata::ops
