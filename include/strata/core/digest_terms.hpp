#pragma once

#include <cstdint>

/// What one element adds to a Digest (strata/core/hash.hpp), on every device.
namespace strata {

/// A bijection after which all bits depend on each.
/// Source: S. Vigna, splitmix64, https://prng.di.unimi.it/splitmix64.c
constexpr std::uint64_t mixed(std::uint64_t bits) {
  bits += 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

/// The number of a tensor in Digest::place; odd, so that no difference of sums is lost. `tensor`:
/// the hash of its name.
constexpr std::uint64_t place_of(std::uint64_t tensor) {
  return mixed(tensor) | 1U;
}

/// Sums of elements of one tensor: Digest::sum and Digest::check.
struct DigestTerms {
  std::uint64_t sum = 0;
  std::uint64_t check = 0;

  /// Adds the element with this index in the tensor.
  constexpr void add(std::uint64_t tensor, std::int64_t index, std::uint64_t bits) {
    const std::uint64_t key = mixed(tensor ^ static_cast<std::uint64_t>(index));
    const std::uint64_t element = mixed(key ^ bits);
    sum += element;
    // A multiple of the key's other half: independent of the sum, without a third mixing.
    check += (element ^ (element >> 32U)) * (key | 1U);
  }
};

}  // namespace strata
