#include "strata/core/random.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <Random123/philox.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

namespace strata {

RandomStream::RandomStream(std::uint64_t seed, RandomPurpose purpose, std::uint64_t subject) {
  // The key has 64 bits: seed, purpose and subject are mixed into it by one Philox call.
  r123::Philox4x32 philox;
  const r123::Philox4x32::ctr_type mixed =
      philox({{static_cast<std::uint32_t>(subject), static_cast<std::uint32_t>(subject >> 32),
               static_cast<std::uint32_t>(purpose), 0U}},
             {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}});
  key_ = {mixed[0], mixed[1]};
}

std::array<std::uint32_t, 4> RandomStream::words(std::uint64_t low, std::uint64_t high) const {
  r123::Philox4x32 philox;
  const r123::Philox4x32::ctr_type result =
      philox({{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
               static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}},
             {{key_[0], key_[1]}});
  return {result[0], result[1], result[2], result[3]};
}

void RandomStream::fill(std::uint64_t first_block, std::uint64_t high,
                        std::span<std::uint32_t> out) const {
  // Sixteen counters at a time in structure-of-arrays form, which the compiler turns into vector
  // code.
  constexpr std::size_t kLanes = 16;
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57U;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
  std::array<std::array<std::uint32_t, kLanes>, 4> c{};
  for (std::size_t begin = 0; begin < out.size(); begin += 4 * kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t low = first_block + begin / 4 + lane;
      c[0][lane] = static_cast<std::uint32_t>(low);
      c[1][lane] = static_cast<std::uint32_t>(low >> 32);
      c[2][lane] = static_cast<std::uint32_t>(high);
      c[3][lane] = static_cast<std::uint32_t>(high >> 32);
    }
    std::uint32_t key0 = key_[0];
    std::uint32_t key1 = key_[1];
    for (int round = 0; round < 10; ++round) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::uint64_t product0 = std::uint64_t{kMultiplier0} * c[0][lane];
        const std::uint64_t product1 = std::uint64_t{kMultiplier1} * c[2][lane];
        c[0][lane] = static_cast<std::uint32_t>(product1 >> 32) ^ c[1][lane] ^ key0;
        c[1][lane] = static_cast<std::uint32_t>(product1);
        c[2][lane] = static_cast<std::uint32_t>(product0 >> 32) ^ c[3][lane] ^ key1;
        c[3][lane] = static_cast<std::uint32_t>(product0);
      }
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    const std::size_t count = std::min(out.size() - begin, 4 * kLanes);
    if (count == 4 * kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        for (std::size_t word = 0; word < 4; ++word) {
          out[begin + 4 * lane + word] = c[word][lane];
        }
      }
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        out[begin + i] = c[i % 4][i / 4];
      }
    }
  }
}

double RandomStream::uniform(std::uint64_t index) const {
  const auto block = words(index / 2);
  const std::size_t half = index % 2 * 2;
  const std::uint64_t bits = (std::uint64_t{block[half]} << 32 | block[half + 1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

double RandomStream::normal(std::uint64_t index) const {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform(2 * index)));
  return radius * std::cos(2.0 * std::numbers::pi * uniform(2 * index + 1));
}

std::uint64_t subject_of(std::string_view name) {
  return hash_of(name);
}

Permutation::Permutation(const RandomStream& stream, std::int64_t count)
    : stream_(stream), count_(static_cast<std::uint64_t>(count)) {
  require(count > 0, "a permutation of {} elements", count);
  rows_ = static_cast<std::uint64_t>(std::ceil(std::sqrt(static_cast<double>(count_))));
  columns_ = (count_ + rows_ - 1) / rows_;
}

std::uint64_t Permutation::rounds(std::uint64_t value) const {
  std::uint64_t row = value / columns_;
  std::uint64_t column = value % columns_;
  for (std::uint64_t round = 0; round < 6; ++round) {
    const bool moves_row = round % 2 == 0;
    const auto word = stream_.words(moves_row ? column : row, round);
    const std::uint64_t shift = std::uint64_t{word[0]} << 32 | word[1];
    if (moves_row) {
      row = (row + shift % rows_) % rows_;
    } else {
      column = (column + shift % columns_) % columns_;
    }
  }
  return row * columns_ + column;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  require(index >= 0 && static_cast<std::uint64_t>(index) < count_, "index {} of {}", index,
          count_);
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = rounds(value);
  } while (value >= count_);
  return static_cast<std::int64_t>(value);
}

}  // namespace strata
