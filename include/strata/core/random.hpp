#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace strata {

/// Purpose of a random number; part of the key, so that no two purposes share a stream.
enum class RandomPurpose : std::uint32_t {
  kInitialise = 1,
  kDropout = 2,
  kShuffle = 3,
  kSynthesise = 4,
  kSample = 5,
  kAugment = 6
};

/// A keyed source of random words without state: the same (seed, purpose, subject, counter) gives
/// the same words on every machine, grid and thread. Source: Salmon, Moraes, Dror, Shaw, "Parallel
/// random numbers: as easy as 1, 2, 3", SC 2011 (Philox4x32-10).
class RandomStream {
 public:
  /// `subject` tells streams of one purpose apart: a parameter's or a layer's subject_of(name), or
  /// an epoch.
  RandomStream(std::uint64_t seed, RandomPurpose purpose, std::uint64_t subject);

  /// The Philox key, for device code that generates the same words.
  [[nodiscard]] const std::array<std::uint32_t, 2>& key() const { return key_; }

  /// Four 32-bit words at a 128-bit counter (low, high).
  [[nodiscard]] std::array<std::uint32_t, 4> words(std::uint64_t low, std::uint64_t high = 0) const;

  /// Words 4 * first_block, ... of row `high`, one for every element of `out`; vectorised.
  /// out[i] == words(first_block + i / 4, high)[i % 4].
  void fill(std::uint64_t first_block, std::uint64_t high, std::span<std::uint32_t> out) const;

  /// A double in [0, 1) with 53 bits, for element `index`.
  [[nodiscard]] double uniform(std::uint64_t index) const;
  /// A standard normal, for element `index` (Box-Muller).
  [[nodiscard]] double normal(std::uint64_t index) const;

 private:
  std::array<std::uint32_t, 2> key_;
};

/// The subject of a parameter or layer, from its global name: the same wherever the layer is
/// placed.
[[nodiscard]] std::uint64_t subject_of(std::string_view name);

/// A permutation of [0, count) evaluated one index at a time, in constant memory.
/// A Feistel network of six rounds over the smallest a x b grid that holds `count`, walked until
/// the value is in range. Source: Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA
/// 2002.
class Permutation {
 public:
  Permutation(const RandomStream& stream, std::int64_t count);

  [[nodiscard]] std::int64_t operator()(std::int64_t index) const;

 private:
  [[nodiscard]] std::uint64_t rounds(std::uint64_t value) const;

  RandomStream stream_;
  std::uint64_t count_;
  std::uint64_t rows_;
  std::uint64_t columns_;
};

}  // namespace strata
