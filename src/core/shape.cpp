#include "strata/core/shape.hpp"

#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace strata {

void Shape::refuse_dimension() {
  throw std::logic_error(fmt::format("a tensor has more than {} dimensions", kMaxRank));
}

void Shape::refuse_tail() {
  throw std::logic_error("a scalar has no first dimension to drop");
}

std::string Shape::text() const {
  return rank_ == 0 ? "scalar" : fmt::format("{}", fmt::join(extents(), " x "));
}

}  // namespace strata
