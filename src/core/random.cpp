#include "strata/core/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#include <Random123/philox.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"

namespace strata {
namespace {

using Lanes [[gnu::vector_size(32)]] = std::uint64_t;

constexpr std::uint64_t kLowHalf = 0xFFFFFFFFU;

/// The words of four counters.
struct Counters {
  Lanes c0;
  Lanes c1;
  Lanes c2;
  Lanes c3;
};

/// 64-bit products of the lanes' low halves with a 32-bit multiplier.
inline Lanes low_products(Lanes lanes, std::uint64_t multiplier) {
#ifdef __AVX2__
  // One instruction, which GCC 12 does not emit for the general form below.
  return reinterpret_cast<Lanes>(_mm256_mul_epu32(reinterpret_cast<__m256i>(lanes),
                                                  reinterpret_cast<__m256i>(Lanes{} + multiplier)));
#elif defined(__ARM_NEON)
  uint64x2_t halves[2];
  std::memcpy(halves, &lanes, sizeof(lanes));
  for (uint64x2_t& half : halves) {
    half = vmull_u32(vmovn_u64(half), vdup_n_u32(static_cast<std::uint32_t>(multiplier)));
  }
  std::memcpy(&lanes, halves, sizeof(lanes));
  return lanes;
#else
  return (lanes & kLowHalf) * multiplier;
#endif
}

}  // namespace

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
  // Eight counters at a time. Each word of a counter occupies a 64-bit lane; only the low half is
  // significant. A 64-bit product leaves its high half where the next round reads it.
  constexpr std::size_t kGroups = 2;
  constexpr std::size_t kGroupWords = 16;
  constexpr std::size_t kWords = kGroups * kGroupWords;
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57U;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
  std::array<Counters, kGroups> counters;
  std::array<std::uint32_t, kWords> last;
  for (std::size_t begin = 0; begin < out.size(); begin += kWords) {
    for (std::size_t g = 0; g < kGroups; ++g) {
      const Lanes low = Lanes{0, 1, 2, 3} + (first_block + begin / 4 + 4 * g);
      counters[g] = {low, low >> 32, Lanes{} + high, Lanes{} + (high >> 32)};
    }
    std::uint32_t key0 = key_[0];
    std::uint32_t key1 = key_[1];
    for (int round = 0; round < 10; ++round) {
      for (Counters& c : counters) {
        const Lanes product0 = low_products(c.c0, kMultiplier0);
        const Lanes product1 = low_products(c.c2, kMultiplier1);
        c = {(product1 >> 32) ^ c.c1 ^ key0, product1, (product0 >> 32) ^ c.c3 ^ key1, product0};
      }
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    const std::size_t count = std::min(out.size() - begin, kWords);
    std::uint32_t* to = count == kWords ? out.data() + begin : last.data();
    for (const Counters& c : counters) {
      const Lanes words01 = (c.c0 & kLowHalf) | c.c1 << 32;
      const Lanes words23 = (c.c2 & kLowHalf) | c.c3 << 32;
      const Lanes first = __builtin_shufflevector(words01, words23, 0, 4, 1, 5);
      const Lanes second = __builtin_shufflevector(words01, words23, 2, 6, 3, 7);
      std::memcpy(to, &first, sizeof(first));
      std::memcpy(to + kGroupWords / 2, &second, sizeof(second));
      to += kGroupWords;
    }
    if (count < kWords) {
      std::copy_n(last.begin(), count, out.begin() + static_cast<std::ptrdiff_t>(begin));
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
