#include "strata/io/sample_order.hpp"

#include <algorithm>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"

namespace strata::io {

std::int64_t sample_at(std::uint64_t seed, std::int64_t count, std::int64_t stream_index) {
  require(count > 0 && stream_index >= 0, "place {} in a stream over {} samples", stream_index,
          count);
  const auto epoch = static_cast<std::uint64_t>(stream_index / count);
  const RandomStream stream(seed, RandomPurpose::kShuffle, epoch);
  return Permutation(stream, count)(stream_index % count);
}

std::int64_t sequential_sample_at(std::int64_t count, std::int64_t stream_index) {
  require(count > 0 && stream_index >= 0, "place {} in a stream over {} samples", stream_index,
          count);
  return std::min(stream_index, count - 1);
}

}  // namespace strata::io
