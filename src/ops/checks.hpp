#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "strata/core/dtype.hpp"
#include "strata/core/reduction_step.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// Throws std::logic_error unless the tensor is in the memory of the context's device. An empty
/// view passes.
void require_memory_space(const Context& context, const ConstTensorView& tensor);

/// Throws std::logic_error unless `tensor`, called `name`, has this dtype and shape.
void require_like(const ConstTensorView& tensor, DType dtype, const Shape& shape,
                  std::string_view name);

/// Throws std::logic_error unless `tensor` has this dtype and number of elements.
void require_count(const ConstTensorView& tensor, DType dtype, std::int64_t count,
                   std::string_view name);

/// Throws std::logic_error unless the operands fit add_bias_residual().
void require_bias_residual(const ConstTensorView& sum, const ConstTensorView& bias,
                           const ConstTensorView& residual, const TensorView& y);

/// Throws std::logic_error unless every step adds one of `parts` parts to another.
void require_steps(std::span<const ReductionStep> steps, std::int64_t parts, std::string_view name);

/// The address of a tensor's elements in host memory, or null for an empty view.
template <typename T, typename View>
auto host_or_null(const View& view) {
  return view.empty() ? nullptr : view.template host<T>().data();
}

/// Calls function(address) with a tensor's elements, which are of type T or its compute type.
template <typename T, typename View, typename Function>
void with_elements(const View& tensor, const Function& function) {
  // NOLINTNEXTLINE(bugprone-branch-clone): the branches differ by the type.
  if (tensor.dtype() == kDTypeOf<T>) {
    function(tensor.template host<T>().data());
  } else {
    function(tensor.template host<Compute<T>>().data());
  }
}

/// A tensor as a matrix: the last dimension is the columns, all others are rows.
struct Rows {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

inline Rows rows_of(const Shape& shape) {
  const std::int64_t columns = shape.back();
  return {columns == 0 ? 0 : shape.count() / columns, columns};
}

}  // namespace strata::ops
