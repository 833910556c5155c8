#pragma once

#include <cstddef>
#include <cstdint>

namespace strata::pipeline {

/// A number as an index of a vector. Pre: it is not negative.
inline std::size_t at(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

}  // namespace strata::pipeline
