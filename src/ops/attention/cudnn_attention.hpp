#pragma once

#include "strata/core/tensor.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/context.hpp"

// Attention by cuDNN. Defined where cuDNN is built (run_by_cudnn).
namespace strata::ops::cuda {

/// The passes of causal_attention_forward() and ..._backward() by cuDNN. False, with nothing
/// enqueued, where cuDNN is missing, switched off, or does not support the shape and dtype, and
/// with a mask that hides tokens.
[[nodiscard]] bool cudnn_attention_forward(Context& context, const AttentionShape& shape,
                                           const ConstTensorView& qkv, const TensorView& y,
                                           const TensorView& log_sums, const AttentionMask& mask);
[[nodiscard]] bool cudnn_attention_backward(Context& context, const AttentionShape& shape,
                                            const ConstTensorView& qkv, const ConstTensorView& y,
                                            const ConstTensorView& log_sums,
                                            const ConstTensorView& dy, const TensorView& dqkv,
                                            const AttentionMask& mask);

}  // namespace strata::ops::cuda
