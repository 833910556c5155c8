#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "strata/core/error.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

/// Throws std::logic_error unless the host can read the tensor.
inline void require_host(const ConstTensorView& tensor) {
  require(tensor.place() == Place::kHost, "a CPU operation was given a tensor in {} memory",
          name_of(tensor.place()));
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

/// Throws Error(kData) for a target outside [0, classes).
inline void check_targets(std::span<const std::int64_t> targets, std::int64_t classes) {
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] < 0 || targets[row] >= classes) {
      fail(ExitCode::kData,
           "row {} of a microbatch has the target {}, the model has {} outputs and so takes 0 to "
           "{}; use the data set that the model is for, or correct the size of the last layer or "
           "of the vocabulary",
           row, targets[row], classes, classes - 1);
    }
  }
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
