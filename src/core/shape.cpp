#include "strata/core/shape.hpp"

#include <fmt/format.h>

namespace strata {

std::string Shape::text() const {
  return rank_ == 0 ? "scalar" : fmt::format("{}", fmt::join(extents(), " x "));
}

}  // namespace strata
