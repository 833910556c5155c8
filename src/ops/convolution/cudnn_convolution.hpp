#pragma once

#include "strata/ops/convolution.hpp"

namespace strata::ops::cuda {

// The passes of the same names by cuDNN, without bias and activation. False, with nothing enqueued,
// where cuDNN does not support the shape and dtypes, is missing, or is switched off. Defined where
// cuDNN is built (run_by_cudnn).
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
