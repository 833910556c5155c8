#pragma once

#include "strata/ops/convolution.hpp"

namespace strata::ops {

// Convolutions in double, in plain loops (oneDNN has no double): each element is a sum in an order
// that follows from the shape alone.

/// y = x * w + bias; bias may be null.
void double_forward(Context& context, const ConvolutionShape& shape, const double* x,
                    const double* w, const double* bias, double* y);

void double_backward_input(Context& context, const ConvolutionShape& shape, const double* dy,
                           const double* w, double* dx);

void double_backward_weight(Context& context, const ConvolutionShape& shape, const double* x,
                            const double* dy, double* dw, Accumulate accumulate);

}  // namespace strata::ops
