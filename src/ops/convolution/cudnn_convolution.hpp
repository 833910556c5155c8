#pragma once

#include "strata/ops/convolution.hpp"

namespace strata::ops::cuda {

// Each does what the pass of the same name does, without a bias and an activation, by cuDNN, and
// returns true. They do nothing and return false where cuDNN does not take the shape in the dtypes,
// where it is not found, and where the context is for own kernels.
// Throws: Error(kPeer) where cuDNN fails.

[[nodiscard]] bool library_forward(Context& context, const ConvolutionShape& shape,
                                   const ConstTensorView& x, const ConstTensorView& w,
                                   const TensorView& y);

[[nodiscard]] bool library_backward_input(Context& context, const ConvolutionShape& shape,
                                          const ConstTensorView& dy, const ConstTensorView& w,
                                          const TensorView& dx);

[[nodiscard]] bool library_backward_weight(Context& context, const ConvolutionShape& shape,
                                           const ConstTensorView& x, const ConstTensorView& dy,
                                           const TensorView& dw, Accumulate accumulate);

}  // namespace strata::ops::cuda
