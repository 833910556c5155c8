#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "strata/core/dtype.hpp"
#include "strata/core/reduction_step.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// Throws std::logic_error unless the tensor lies in the memory of the context's device. No tensor,
/// an empty view, lies everywhere.
void require_memory_space(const Context& context, const ConstTensorView& tensor);

/// Throws std::logic_error unless `tensor`, called `name`, has this dtype and shape.
void require_like(const ConstTensorView& tensor, DType dtype, const Shape& shape,
                  std::string_view name);

/// Throws std::logic_error unless `tensor` has this dtype and number of elements.
void require_count(const ConstTensorView& tensor, DType dtype, std::int64_t count,
                   std::string_view name);

/// Throws std::logic_error unless add_bias_residual() takes the operands.
void require_bias_residual(const ConstTensorView& sum, const ConstTensorView& bias,
                           const ConstTensorView& residual, const TensorView& y);

/// Throws std::logic_error unless every addition is of one of `parts` parts to another.
void require_steps(std::span<const ReductionStep> steps, std::int64_t parts, std::string_view name);

/// The address of a tensor's elements in host memory, or null where there is no tensor.
template <typename T, typename View>
auto host_or_null(const View& view) {
  return view.empty() ? nullptr : view.template host<T>().data();
}

/// How a tensor reads as a matrix: leading dimensions are rows, the last is columns.
struct Rows {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

inline Rows rows_of(const Shape& shape) {
  const std::int64_t columns = shape.back();
  return {columns == 0 ? 0 : shape.count() / columns, columns};
}

}  // namespace strata::ops
