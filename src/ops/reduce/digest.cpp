#include "strata/ops/digest.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "strata/core/digest_terms.hpp"
#include "strata/core/dtype.hpp"
#include "strata/device/host_copy.hpp"

#include "observed.hpp"
#include "reduce/cuda_digest.hpp"

namespace strata::ops {

Digest digest_of(std::string_view name, const ConstTensorView& x, const DigestPlaces& places) {
  Digest digest;
  with_floating(x.dtype(), [&]<typename T>(T) {
    using Bits =
        std::conditional_t<sizeof(T) == sizeof(std::uint64_t), std::uint64_t, std::uint32_t>;
    const std::span<const T> values = x.host<T>();
    std::vector<Bits> bits;
    for (std::int64_t i = 0; i < std::ssize(values);) {
      constexpr std::int64_t kMost = 4096;  // stays in the cache
      // Elements that are consecutive in the tensor too.
      const std::int64_t count =
          std::min({std::ssize(values) - i, places.row - (places.begin + i) % places.row, kMost});
      bits.resize(static_cast<std::size_t>(count));
      std::ranges::transform(values.subspan(static_cast<std::size_t>(i), bits.size()), bits.begin(),
                             [](T value) { return std::bit_cast<Bits>(value); });
      digest += strata::digest_of(name, places.of(i), std::span<const Bits>(bits));
      i += count;
    }
  });
  return digest;
}

Digest digest_of(Context& context, std::string_view name, const ConstTensorView& x,
                 const DigestPlaces& places) {
  const Observed observed(context, "digest", x);
  if (observed.skips()) {
    return {};
  }
  if constexpr (kHasCuda) {
    if (x.memory_space() != MemorySpace::kHost && x.count() > 0) {
      const std::uint64_t tensor = hash_of(name);
      const device::HostView words(cuda::digest_terms(context, tensor, x, places),
                                   context.stream());
      const auto terms = words.view().host<std::int64_t>();
      const auto sum = static_cast<std::uint64_t>(terms[0]);
      return {.sum = sum,
              .check = static_cast<std::uint64_t>(terms[1]),
              .place = sum * place_of(tensor)};
    }
  }
  return x.count() == 0 ? Digest() : digest_of(name, x, places);
}

}  // namespace strata::ops
