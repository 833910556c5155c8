#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// exp, tanh and sigmoid. For float they are branch-free code that the compiler turns into vector
// code; its scalar tail does the same IEEE operations, so that bits do not depend on where a loop
// begins. For double they are the C library's.
namespace strata::ops {

/// exp(x) = 2^n (1 + p) with p = exp(r) - 1 and |r| <= ln(2) / 2.
struct ReducedExp {
  std::int32_t n;
  float p;
};

/// Pre: |x| < 2^20 or NaN.
inline ReducedExp reduced_exp(float x) {
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
  constexpr float kRounder = 12582912.0F;
  constexpr float kLog2E = 1.44269504088896340736F;
  // ln(2) in two parts; the first has so few bits that its product with n is exact.
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440054690583e-4F;
  const float shifted = x * kLog2E + kRounder;
  const float whole = shifted - kRounder;
  const float r = (x - whole * kLn2High) - whole * kLn2Low;
  // Taylor's polynomial of exp(r) - 1; what is left out is below 2^-27 of the result.
  float series = 1.0F / 5040.0F;
  series = series * r + 1.0F / 720.0F;
  series = series * r + 1.0F / 120.0F;
  series = series * r + 1.0F / 24.0F;
  series = series * r + 1.0F / 6.0F;
  series = series * r + 0.5F;
  return {std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRounder),
          (series * r) * r + r};
}

/// 2^n. Pre: -126 <= n <= 127.
inline float power_of_two(std::int32_t n) {
  return std::bit_cast<float>((n + 127) << 23);
}

/// A NaN stays one, for no comparison with it holds.
inline float clamped(float x, float low, float high) {
  const float above = x < low ? low : x;
  return above > high ? high : above;
}

/// exp(x) within 2 units in the last place; 0 below the smallest denormal, infinity above the
/// largest float.
inline float fast_exp(float x) {
  const ReducedExp e = reduced_exp(clamped(x, -105.0F, 90.0F));
  // In two factors, since n runs from -151 to 130.
  const std::int32_t half = e.n >> 1;
  const float first = power_of_two(half);
  const float second = power_of_two(e.n - half);
  return (first + first * e.p) * second;
}

inline double fast_exp(double x) {
  return std::exp(x);
}

/// tanh(x) = (exp(2|x|) - 1) / (exp(2|x|) + 1) with the sign of x; exp - 1 is formed without
/// cancellation, so that small x keep their relative precision.
inline float fast_tanh(float x) {
  const float magnitude = std::fabs(x);
  const ReducedExp e = reduced_exp(2.0F * clamped(magnitude, 0.0F, 10.0F));
  const float power = power_of_two(e.n);
  const float less_one = power * e.p + (power - 1.0F);
  return std::copysign(less_one / (less_one + 2.0F), x);
}

inline double fast_tanh(double x) {
  return std::tanh(x);
}

/// 1 / (1 + exp(-x)).
template <typename T>
T fast_sigmoid(T x) {
  return T{1} / (T{1} + fast_exp(-x));
}

}  // namespace strata::ops
