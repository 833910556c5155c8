#include "allocations.hpp"

#include <cstdlib>
#include <new>

namespace strata::test {
namespace {

thread_local Allocations allocations;

}  // namespace

Allocations own_allocations() noexcept {
  return allocations;
}

}  // namespace strata::test

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// In place of the program's.

void* operator new(std::size_t bytes) {
  ++strata::test::allocations.count;
  strata::test::allocations.bytes += static_cast<std::int64_t>(bytes);
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  return memory != nullptr ? memory : throw std::bad_alloc();
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

#endif
