#pragma once

#include <cstdint>

#include "strata/core/enum_names.hpp"

namespace strata::io {

/// In which order a loader gives samples.
enum class Order {
  kShuffled,   ///< every epoch a new permutation of all samples, without end
  kSequential  ///< once in file order, then the last sample again and again as padding
};

/// How samples are taken from a stream of tokens while training.
enum class Sampling {
  kBlocks,  ///< the stream cut into blocks of the context's length, each once an epoch
  kWindows  ///< from anywhere in the stream, independently
};

constexpr auto enum_names(Sampling) {
  return names_in_order("blocks", "windows");
}

/// The sample at a place of the shuffled stream, in which epochs follow each other without a gap:
/// a pure function, so every rank finds its samples by itself and a resumed run goes on where it
/// stopped. Pre: count > 0, stream_index >= 0.
[[nodiscard]] std::int64_t sample_at(std::uint64_t seed, std::int64_t count,
                                     std::int64_t stream_index);

/// The sample at a place of the sequential stream. Pre: count > 0, stream_index >= 0.
[[nodiscard]] std::int64_t sequential_sample_at(std::int64_t count, std::int64_t stream_index);

/// Where the window at a place of the stream begins: uniform over [0, choices), and a pure function
/// as sample_at is. Pre: choices > 0, stream_index >= 0.
[[nodiscard]] std::int64_t window_at(std::uint64_t seed, std::int64_t choices,
                                     std::int64_t stream_index);

}  // namespace strata::io
