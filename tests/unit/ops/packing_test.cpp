#include "strata/ops/packing.hpp"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "tensors.hpp"

namespace strata::ops::packing_test {
namespace {

using namespace test;

struct Case {
  Packing packing;
  int bits;                 ///< of an integer; 0: none
  std::int64_t bytes;       ///< of a group of float32
  std::int64_t wide_bytes;  ///< of a group of float64
};

const std::vector<Case> kCases{{Packing::kFull, 0, 512, 1024}, {Packing::kBfloat16, 0, 256, 256},
                               {Packing::kInt8, 8, 132, 132},  {Packing::kInt7, 7, 116, 116},
                               {Packing::kInt6, 6, 100, 100},  {Packing::kInt5, 5, 84, 84},
                               {Packing::kInt4, 4, 68, 68}};

template <typename T>
std::vector<std::byte> packed(const Tensor<T>& values, Packing packing, int threads = 1) {
  Context context(threads);
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(packed_bytes(packing, kDTypeOf<T>, std::ssize(values.elements()))));
  pack(context, values.view(), packing, bytes);
  return bytes;
}

template <typename T>
Tensor<T> unpacked(const std::vector<std::byte>& bytes, Packing packing, std::int64_t count,
                   int threads = 1) {
  Context context(threads);
  Tensor<T> values({count});
  unpack(context, bytes, packing, values.view());
  return values;
}

template <typename T>
class PackingTyped : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(PackingTyped, Types);

TYPED_TEST(PackingTyped, StoresNumbersWithinHalfAStepInAnExactSize) {
  using T = TypeParam;
  constexpr std::int64_t kGroups = 300;
  constexpr std::int64_t kCount = kGroups * kPackedGroup;
  Tensor<T> values = randoms<T>({kCount}, 1);
  for (std::int64_t i = 0; i < kCount; ++i) {
    // Groups of very different sizes, and one of zeros.
    values[i] *= std::ldexp(T{1}, static_cast<int>(i / kPackedGroup % 40) - 20);
    values[i] = i / kPackedGroup == 7 ? T{0} : values[i];
  }
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c.packing));
    const std::vector<std::byte> bytes = packed(values, c.packing);
    EXPECT_EQ(std::ssize(bytes), kGroups * (sizeof(T) == 8 ? c.wide_bytes : c.bytes));
    const Tensor<T> found = unpacked<T>(bytes, c.packing, kCount);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      double largest = 0.0;
      for (std::int64_t i = group * kPackedGroup; i < (group + 1) * kPackedGroup; ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(values[i])));
      }
      for (std::int64_t i = group * kPackedGroup; i < (group + 1) * kPackedGroup; ++i) {
        const auto value = static_cast<double>(values[i]);
        // bfloat16 has 8 significant bits. The quotient and the product are rounded to float32.
        const double bound = c.packing == Packing::kFull ? 0.0
                             : c.bits == 0               ? std::ldexp(std::abs(value), -8) * 1.0001
                                           : largest / ((1 << (c.bits - 1)) - 1) * 0.50003;
        ASSERT_NEAR(static_cast<double>(found[i]), value, bound) << "element " << i;
        ASSERT_FALSE(std::signbit(value) != std::signbit(found[i]) && found[i] != T{0});
      }
    }
    for (const int threads : {2, 4}) {
      EXPECT_EQ(packed(values, c.packing, threads), bytes);
      EXPECT_EQ(unpacked<T>(bytes, c.packing, kCount, threads).values(), found.values());
    }
  }
}

TYPED_TEST(PackingTyped, NumbersThatAreNotFiniteStayVisible) {
  using T = TypeParam;
  for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                      -std::numeric_limits<T>::infinity()}) {
    Tensor<T> values = randoms<T>({2 * kPackedGroup}, 2);
    values[5] = bad;
    for (const Case& c : kCases) {
      SCOPED_TRACE(name_of(c.packing));
      const Tensor<T> found = unpacked<T>(packed(values, c.packing), c.packing, 2 * kPackedGroup);
      EXPECT_FALSE(std::isfinite(found[5]));
      for (std::int64_t i = kPackedGroup; i < 2 * kPackedGroup; ++i) {
        ASSERT_TRUE(std::isfinite(found[i])) << "another group, element " << i;
      }
    }
  }
}

TEST(Packing, Int4OfKnownNumbers) {
  Tensor<float> values({kPackedGroup});
  std::ranges::fill(values.elements(), 0.0F);
  // The largest is 14, so the scale is 2: integers -7 to 7, stored from 0.
  const std::vector<float> given{14.0F, -14.0F, 3.0F, -1.0F, 0.9F, -8.2F};
  const std::vector<float> stored{14.0F, -14.0F, 4.0F, 0.0F, 0.0F, -8.0F};  // ties to even
  std::ranges::copy(given, values.elements().begin());
  const std::vector<std::byte> bytes = packed(values, Packing::kInt4);
  float scale = 0.0F;
  std::memcpy(&scale, bytes.data(), sizeof(scale));
  EXPECT_EQ(scale, 2.0F);
  // Codes 14, 0; 9, 7; 7, 3: the first number in the low half of a byte.
  EXPECT_EQ(bytes[4], std::byte{0x0E});
  EXPECT_EQ(bytes[5], std::byte{0x79});
  EXPECT_EQ(bytes[6], std::byte{0x37});
  EXPECT_EQ(bytes[67], std::byte{0x77});
  const std::vector<float> found = unpacked<float>(bytes, Packing::kInt4, kPackedGroup).values();
  EXPECT_EQ(std::vector<float>(found.begin(), found.begin() + 6), stored);
}

TEST(Packing, RefusesPartsOfAGroup) {
  EXPECT_THROW(static_cast<void>(packed_bytes(Packing::kInt8, DType::kFloat32, 100)),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops::packing_test
