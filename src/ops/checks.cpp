#include "checks.hpp"

#include "strata/core/error.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::ops {

void require_memory_space(const Context& context, const ConstTensorView& tensor) {
  require(tensor.empty() || tensor.memory_space() == context.device().memory_space(),
          "an operation on {} got a tensor in {} memory", context.device().text(),
          name_of(tensor.memory_space()));
}

void require_like(const ConstTensorView& tensor, DType dtype, const Shape& shape,
                  std::string_view name) {
  require(tensor.dtype() == dtype && tensor.shape() == shape, "{} is {} {}, {} {} was expected",
          name, name_of(tensor.dtype()), tensor.shape().text(), name_of(dtype), shape.text());
}

void require_count(const ConstTensorView& tensor, DType dtype, std::int64_t count,
                   std::string_view name) {
  require(tensor.dtype() == dtype && tensor.count() == count, "{} is {} {}, {} of {} was expected",
          name, name_of(tensor.dtype()), tensor.shape().text(), count, name_of(dtype));
}

void require_bias_residual(const ConstTensorView& sum, const ConstTensorView& bias,
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

void require_steps(std::span<const ReductionStep> steps, std::int64_t parts,
                   std::string_view name) {
  for (const ReductionStep& step : steps) {
    require(step.into >= 0 && step.into < parts && step.from >= 0 && step.from < parts &&
                step.into != step.from,
            "{} adds part {} to part {} of {}", name, step.from, step.into, parts);
  }
}

}  // namespace strata::ops
