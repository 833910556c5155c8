#pragma once

#include <cstdint>

namespace strata::test {

/// What this thread has asked of operator new so far; nothing under sanitizers, which have
/// operators of their own.
struct Allocations {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
};
[[nodiscard]] Allocations own_allocations() noexcept;

}  // namespace strata::test
