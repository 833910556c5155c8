#pragma once

#include <cstdint>
#include <string_view>

#include "strata/core/hash.hpp"
#include "strata/core/tensor.hpp"

namespace strata::ops {

class Context;

/// Where the elements of a slice are in their tensor: element i is in row (begin + i) / row, and
/// rows begin `first`, first + stride, .. elements into the tensor.
struct DigestPlaces {
  std::int64_t begin = 0;
  std::int64_t row = 1;
  std::int64_t stride = 1;
  std::int64_t first = 0;

  [[nodiscard]] constexpr std::int64_t of(std::int64_t i) const {
    return (begin + i) / row * stride + first + (begin + i) % row;
  }
};

/// The digest of a slice of the tensor `name`: summed over all slices that of the tensor, however
/// it is cut, on every device. Waits for the work on the context's stream; from a GPU 16 bytes are
/// copied. Shapes: x of any shape, float32 or float64, in the context's or in host memory.
[[nodiscard]] Digest digest_of(Context& context, std::string_view name, const ConstTensorView& x,
                               const DigestPlaces& places);
/// The same of host memory, on the calling thread.
[[nodiscard]] Digest digest_of(std::string_view name, const ConstTensorView& x,
                               const DigestPlaces& places);

}  // namespace strata::ops
