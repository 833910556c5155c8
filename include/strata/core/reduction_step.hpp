#pragma once

#include <cstdint>

namespace strata {

/// One addition of an ordered reduction: part `into` += part `from`.
struct ReductionStep {
  std::int64_t into = 0;
  std::int64_t from = 0;

  friend bool operator==(const ReductionStep&, const ReductionStep&) = default;
};

}  // namespace strata
