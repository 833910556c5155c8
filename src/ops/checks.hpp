#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/core/tensor.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::ops {

/// Throws std::logic_error unless the tensor is in the memory of the context's device. An empty
/// view passes.
inline void require_memory_space(const Context& context, const ConstTensorView& tensor) {
  require(tensor.empty() || tensor.memory_space() == context.device().memory_space(),
          "an operation on {} was given a tensor in {} memory", context.device().text(),
          name_of(tensor.memory_space()));
}

/// Throws std::logic_error unless `tensor`, called `name`, has this dtype and shape.
inline void require_like(const ConstTensorView& tensor, DType dtype, const Shape& shape,
                         std::string_view name) {
  require(tensor.dtype() == dtype && tensor.shape() == shape, "{} is {} {}, {} {} was expected",
          name, name_of(tensor.dtype()), tensor.shape().text(), name_of(dtype), shape.text());
}

/// Throws std::logic_error unless `tensor` has this dtype and number of elements.
inline void require_count(const ConstTensorView& tensor, DType dtype, std::int64_t count,
                          std::string_view name) {
  require(tensor.dtype() == dtype && tensor.count() == count, "{} is {} {}, {} of {} was expected",
          name, name_of(tensor.dtype()), tensor.shape().text(), count, name_of(dtype));
}

/// Throws std::logic_error unless the operands fit add_bias_residual().
inline void require_bias_residual(const ConstTensorView& sum, const ConstTensorView& bias,
                                  const ConstTensorView& residual, const TensorView& y) {
  const bool is_wide = sum.dtype() == compute_dtype(y.dtype());
  require_count(sum, is_wide ? sum.dtype() : y.dtype(), y.count(),
                "the sum that a bias is added to");
  if (!bias.empty()) {
    require_count(bias, y.dtype(), y.shape().back(), "a bias");
  }
  if (!residual.empty()) {
    require_count(residual, y.dtype(), y.count(), "a residual");
  }
}

/// Throws std::logic_error unless every step adds one of `parts` parts to another.
inline void require_steps(std::span<const ReductionStep> steps, std::int64_t parts,
                          std::string_view name) {
  for (const ReductionStep& step : steps) {
    require(step.into >= 0 && step.into < parts && step.from >= 0 && step.from < parts &&
                step.into != step.from,
            "{} adds part {} to part {} of {}", name, step.from, step.into, parts);
  }
}

/// The address of a tensor's elements in host memory, or null for an empty view.
template <typename T, typename View>
auto host_or_null(const View& view) {
  return view.empty() ? nullptr : view.template host<T>().data();
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
