#pragma once

#include <cstdint>

#include "strata/core/dtype.hpp"

#include "simd/to_storage.hpp"

namespace strata::ops {

/// elements[i] = relu(elements[i]). Not oneDNN's ReLU, which turns NaNs into 0.
template <typename T>
void relu_run(T* elements, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<Compute<T>>(elements[i]);
    elements[i] = to_storage<T>(value < Compute<T>{0} ? Compute<T>{0} : value);
  }
}

}  // namespace strata::ops
