#include "strata/io/sample_order.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"
#include "strata/io/dataset.hpp"

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

std::int64_t window_at(std::uint64_t seed, std::int64_t choices, std::int64_t stream_index) {
  require(choices > 0 && stream_index >= 0, "window {} of a stream with {} places", stream_index,
          choices);
  // Other shuffles use the epoch as subject, which never reaches this value.
  const RandomStream stream(seed, RandomPurpose::kShuffle, subject_of("windows"));
  const auto words = stream.words(static_cast<std::uint64_t>(stream_index));
  const std::uint64_t bits = std::uint64_t{words[1]} << 32U | words[0];
  // The high half of a 128-bit product; its deviation from uniform is below choices / 2^64.
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::int64_t>(Wide{bits} * static_cast<std::uint64_t>(choices) >> 64U);
}

MixedSample mixed_sample_at(std::uint64_t seed, const Dataset& dataset, std::int64_t stream_index) {
  const auto [set, index] = dataset.mixture()->at(seed, stream_index);
  const grid::Range samples = dataset.samples_of(set);
  const std::uint64_t own = seed ^ subject_of(fmt::format("set {} of a mixture", set));
  return {set, samples.begin + sample_at(own, samples.count(), index)};
}

}  // namespace strata::io
