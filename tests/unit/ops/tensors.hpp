#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/dtype.hpp"
#include "strata/core/random.hpp"
#include "strata/core/tensor.hpp"
#include "strata/ops/context.hpp"

#include "central_difference.hpp"

namespace strata::ops::test {

/// An owned tensor whose elements can be made to begin at any element of a 64-byte line.
template <typename T>
class Tensor {
 public:
  explicit Tensor(const Shape& shape, std::size_t misalignment = 0)
      : shape_(shape),
        count_(static_cast<std::size_t>(shape.count())),
        storage_(count_ + kLine + misalignment),
        begin_(storage_.data() + aligned_index() + misalignment) {}
  Tensor(const Tensor& other, std::size_t misalignment) : Tensor(other.shape_, misalignment) {
    std::ranges::copy(other.elements(), elements().begin());
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor&&) noexcept = default;

  [[nodiscard]] std::span<T> elements() { return {begin_, count_}; }
  [[nodiscard]] std::span<const T> elements() const { return {begin_, count_}; }
  [[nodiscard]] std::vector<T> values() const { return {elements().begin(), elements().end()}; }
  [[nodiscard]] TensorView view() { return {elements(), shape_}; }
  [[nodiscard]] ConstTensorView view() const { return {elements(), shape_}; }
  T& operator[](std::int64_t index) { return begin_[index]; }
  const T& operator[](std::int64_t index) const { return begin_[index]; }

 private:
  static constexpr std::size_t kLine = 64 / sizeof(T);

  [[nodiscard]] std::size_t aligned_index() const {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    return (64 - address % 64) % 64 / sizeof(T);
  }

  Shape shape_;
  std::size_t count_;
  std::vector<T> storage_;
  T* begin_;
};

/// An element's value.
template <typename T>
double as_double(T element) {
  return static_cast<double>(static_cast<Compute<T>>(element));
}

/// Evenly spread over [-1.75, 1.75) times `scale`, a deviation of about 1; equal seeds and shapes
/// give equal values, rounded to T.
template <typename T>
Tensor<T> randoms(const Shape& shape, std::uint64_t seed, double scale = 1.0,
                  std::size_t misalignment = 0) {
  Tensor<T> tensor(shape, misalignment);
  std::vector<std::uint32_t> words(tensor.elements().size());
  RandomStream(seed, RandomPurpose::kSynthesise, 0).fill(0, 0, words);
  // Tests are not optimized: calls in this loop would take most of their time.
  T* element = tensor.elements().data();
  for (const std::uint32_t word : words) {
    *element++ = static_cast<T>(static_cast<Compute<T>>(scale * 3.5 * (word * 0x1p-32 - 0.5)));
  }
  return tensor;
}

/// NaN, for what must be written before it is read.
template <typename T>
Tensor<T> poisoned(const Shape& shape, std::size_t misalignment = 0) {
  Tensor<T> tensor(shape, misalignment);
  std::fill(tensor.elements().begin(), tensor.elements().end(),
            static_cast<T>(std::numeric_limits<Compute<T>>::quiet_NaN()));
  return tensor;
}

/// |a - b| / |b| in the Euclidean norm.
template <typename A, typename B>
double relative_error(std::span<const A> a, std::span<const B> b) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double expected = as_double(b[i]);
    difference += std::pow(as_double(a[i]) - expected, 2);
    norm += expected * expected;
  }
  return std::sqrt(difference / norm);
}

/// What rounding to bfloat16 may change a number by, relative to it: half of the last of 8 bits.
inline constexpr double kHalfUlp = 0x1p-8;

/// Holds bfloat16 (or float32) results to numbers computed in float: one rounding apart, and two
/// where the float lies so close to a boundary that its own error, `slack` of `scale`, decides.
template <typename T>
void expect_rounded(std::span<const T> results, std::span<const double> expected, double scale,
                    double slack) {
  ASSERT_EQ(results.size(), expected.size());
  const double half_ulp = sizeof(T) == 2 ? kHalfUlp : 0.0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    ASSERT_NEAR(as_double(results[i]), expected[i],
                half_ulp * std::fabs(expected[i]) + 2.0 * slack * scale)
        << "element " << i;
  }
}

/// What f32 and f64 results may differ from a reference by, relative to its norm.
template <typename T>
inline constexpr double kTolerance = sizeof(T) == 4 ? 2e-6 : 1e-13;

/// The same of results that are stored as T, bfloat16 among them: rounding of the sums, and of what
/// is stored.
template <typename T>
inline constexpr double kStoredTolerance = kTolerance<Compute<T>> +
                                           (sizeof(T) == 2 ? kHalfUlp : 0.0);

/// Holds `gradient` to central differences of `loss` at `at`, element by element.
inline void expect_gradient(const std::function<double()>& loss, std::span<double> at,
                            std::span<const double> gradient) {
  constexpr double kStep = 1e-6;
  for (std::size_t i = 0; i < at.size(); ++i) {
    EXPECT_NEAR(strata::test::central_difference(loss, at[i], kStep), gradient[i],
                1e-7 * (1.0 + std::fabs(gradient[i])))
        << "element " << i;
  }
}

/// sum(a b), a loss whose gradient with respect to b is a.
inline double dot(const Tensor<double>& a, const Tensor<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.elements().size(); ++i) {
    sum += a.elements()[i] * b.elements()[i];
  }
  return sum;
}

}  // namespace strata::ops::test
