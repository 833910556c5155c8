#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// exp, tanh and functions built on them. The float versions are branch-free, so that the compiler
// vectorises them; scalar tails perform the same IEEE operations, so bits do not depend on where a
// loop begins. The double versions are the C library's. All are always inlined, because a call
// prevents vectorisation.
namespace strata::ops {

/// a * b + c, rounded once where the machine does that in one instruction: x86-64 with FMA, Arm.
[[gnu::always_inline]] inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

[[gnu::always_inline]] inline double fused(double a, double b, double c) {
  return a * b + c;
}

// Adding 1.5 * 2^23 rounds to an integer n and leaves it in the low bits.
inline constexpr float kRounder = 12582912.0F;

/// 2^n of a float made by adding kRounder to n; infinity where n is 128. Pre: -126 <= n <= 128.
[[gnu::always_inline]] inline float power_of_rounded(float shifted) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23U) + 0x3F800000U);
}

/// Propagates NaNs: comparisons with them are false.
[[gnu::always_inline]] inline float clamped(float x, float low, float high) {
  const float above = x < low ? low : x;
  return above > high ? high : above;
}

/// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2.
struct ReducedExp {
  float shifted;  ///< n + kRounder
  float r;
  float q;  ///< (exp(r) - 1 - r) / r^2
};

[[gnu::always_inline]] inline ReducedExp reduced_exp(float x) {
  constexpr float kLog2E = 1.44269504088896340736F;
  // ln(2) in two parts; the first has so few bits that its product with n is exact.
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440054690583e-4F;
  const float shifted = fused(x, kLog2E, kRounder);
  const float whole = shifted - kRounder;
  const float r = fused(-whole, kLn2Low, fused(-whole, kLn2High, x));
  // The polynomial whose largest error of r^2 q is smallest, 2^-27.7.
  float q = 0.00139505405F;
  q = fused(q, r, 0.00836891774F);
  q = fused(q, r, 0.041666206F);
  q = fused(q, r, 0.166665182F);
  q = fused(q, r, 0.5F);
  return {shifted, r, q};
}

/// exp(x) within 2 units in the last place, 0 where that is below the smallest normal float.
/// Pre: x <= 88 or NaN.
[[gnu::always_inline]] inline float fast_exp(float x) {
  constexpr float kLeast = -87.3365447F;
  const ReducedExp e = reduced_exp(x);
  const float power = fused(fused(e.q, e.r, 1.0F), e.r, 1.0F) * power_of_rounded(e.shifted);
  return x < kLeast ? 0.0F : power;
}

[[gnu::always_inline]] inline double fast_exp(double x) {
  return std::exp(x);
}

/// tanh(x) = (exp(2|x|) - 1) / (exp(2|x|) + 1) with the sign of x; exp - 1 is formed without
/// cancellation, so that small x keep their relative precision.
[[gnu::always_inline]] inline float fast_tanh(float x) {
  const float magnitude = std::fabs(x);
  const ReducedExp e = reduced_exp(2.0F * (magnitude > 10.0F ? 10.0F : magnitude));
  const float power = power_of_rounded(e.shifted);
  const float less_one = fused(power, fused(e.q * e.r, e.r, e.r), power - 1.0F);
  return std::copysign(less_one / (less_one + 2.0F), x);
}

[[gnu::always_inline]] inline double fast_tanh(double x) {
  return std::tanh(x);
}

/// 1 + exp(-x); infinity where the exponential is above 2^127.5.
[[gnu::always_inline]] inline float one_and_exp_minus(float x) {
  // Below -87 an exponential is lost in the sum, and 2^128 is infinity.
  const ReducedExp e = reduced_exp(clamped(-x, -87.0F, 88.7F));
  return fused(fused(fused(e.q, e.r, 1.0F), e.r, 1.0F), power_of_rounded(e.shifted), 1.0F);
}

[[gnu::always_inline]] inline double one_and_exp_minus(double x) {
  return 1.0 + std::exp(-x);
}

/// 1 / (1 + exp(-x)).
template <typename T>
[[gnu::always_inline]] inline T fast_sigmoid(T x) {
  return T{1} / one_and_exp_minus(x);
}

/// 1 + 2^x; infinity where x is above 127.5.
[[gnu::always_inline]] inline float one_and_exp2(float x) {
  const float bounded = clamped(x, -126.0F, 128.0F);
  const float shifted = bounded + kRounder;
  const float r = bounded - (shifted - kRounder);
  // The polynomial of 2^r whose largest error is smallest, 2^-26.
  float power = 0.000154764464F;
  power = fused(power, r, 0.00134004035F);
  power = fused(power, r, 0.00961800385F);
  power = fused(power, r, 0.0555032752F);
  power = fused(power, r, 0.240226507F);
  power = fused(power, r, 0.693147182F);
  power = fused(power, r, 1.0F);
  return fused(power, power_of_rounded(shifted), 1.0F);
}

/// Not std::exp2, whose last bits differ between x86-64 and Arm in glibc 2.36.
[[gnu::always_inline]] inline double one_and_exp2(double x) {
  return 1.0 + std::pow(2.0, x);
}

}  // namespace strata::ops
