#pragma once

#include <cstdint>

#include "strata/ops/activation.hpp"

#include "cuda/kernel.hpp"

// The epilogue of products and convolutions whose library has none. Included by .cu files alone.
namespace strata::ops::cuda {

/// y = relu(y + bias) by rows of `columns` elements; the bias may be null, the ReLU left out.
template <typename T, typename Bias>
__global__ void bias_kernel(std::int64_t count, std::int64_t columns, const Bias* bias,
                            bool is_relu, T* y) {
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  using C = Compute<T>;
  C value = value_of(y[i]);
  if (bias != nullptr) {
    value += value_of(bias[i % columns]);
  }
  y[i] = to_storage<T>(is_relu && value < C{0} ? C{0} : value);
}

/// Launches bias_kernel(). Pre: the activation is kNone or kRelu.
template <typename T, typename Bias>
void add_bias(Context& context, const char* name, const TensorView& y, std::int64_t columns,
              const Bias* bias, Activation activation) {
  launch(context, name, grid_of(y.count()), bias_kernel<T, Bias>, y.count(), columns, bias,
         activation == Activation::kRelu, y.device<T>());
}

}  // namespace strata::ops::cuda
