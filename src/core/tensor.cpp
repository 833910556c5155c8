#include "strata/core/tensor.hpp"

#include <stdexcept>

#include <fmt/core.h>

namespace strata {

void refuse_dtype(DType dtype) {
  throw std::logic_error(
      fmt::format("a floating-point tensor was expected, this one is {}", name_of(dtype)));
}

void refuse_elements(std::size_t elements, const Shape& shape) {
  throw std::logic_error(
      fmt::format("{} elements do not make a tensor of {}", elements, shape.text()));
}

void refuse_access(MemorySpace expected, MemorySpace memory_space, DType expected_dtype,
                   DType dtype) {
  if (memory_space != expected) {
    throw std::logic_error(fmt::format("a tensor in {} memory was read as one in {} memory",
                                       name_of(memory_space), name_of(expected)));
  }
  throw std::logic_error(
      fmt::format("a {} tensor was read as {}", name_of(dtype), name_of(expected_dtype)));
}

void refuse_reshape(const Shape& from, const Shape& to) {
  throw std::logic_error(fmt::format("{} cannot be reshaped to {}", from.text(), to.text()));
}

void refuse_slice(std::int64_t begin, std::int64_t count, std::int64_t elements) {
  throw std::logic_error(
      fmt::format("slice [{}, {}) of {} elements", begin, begin + count, elements));
}

}  // namespace strata
