#pragma once

#include <cstdint>

#include "strata/core/enum_names.hpp"

namespace strata::io {

class Dataset;

/// The order in which a loader reads samples.
enum class Order {
  kShuffled,   ///< a new permutation of all samples in every epoch, endless
  kSequential  ///< once in file order, then the last sample repeated as padding
};

/// How training samples are drawn from a token stream.
enum class Sampling {
  kBlocks,  ///< consecutive blocks of one context length, each once per epoch
  kWindows  ///< independent random positions in the stream
};
constexpr auto enum_names(Sampling) {
  return names_in_order("blocks", "windows");
}

/// The sample at an index of the shuffled stream, in which epochs follow each other without a gap.
/// A pure function: each rank computes its samples without communication, and a resumed run
/// continues where it stopped. Pre: count > 0, stream_index >= 0.
[[nodiscard]] std::int64_t sample_at(std::uint64_t seed, std::int64_t count,
                                     std::int64_t stream_index);

/// The sample at an index of the sequential stream. Pre: count > 0, stream_index >= 0.
[[nodiscard]] std::int64_t sequential_sample_at(std::int64_t count, std::int64_t stream_index);

/// The first token of the window at an index of the stream: uniform over [0, choices), a pure
/// function as sample_at. Pre: choices > 0, stream_index >= 0.
[[nodiscard]] std::int64_t window_at(std::uint64_t seed, std::int64_t choices,
                                     std::int64_t stream_index);

/// The sample at an index of a mixture's shuffled stream, and its set; a pure function as
/// sample_at. Pre: dataset.mixture(), stream_index >= 0.
struct MixedSample {
  std::int64_t set = 0;
  std::int64_t sample = 0;
};
[[nodiscard]] MixedSample mixed_sample_at(std::uint64_t seed, const Dataset& dataset,
                                          std::int64_t stream_index);

}  // namespace strata::io
