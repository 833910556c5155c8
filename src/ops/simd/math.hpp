#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// exp, tanh, the normal distribution and functions built on them. The float versions are
// branch-free, so that the compiler vectorises them; scalar tails perform the same IEEE operations,
// so bits do not depend on where a loop begins. The double versions are built on the C library's.
// All are always inlined, because a call prevents vectorisation.
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

/// Phi(-z) exp(z^2 / 2) of the normal distribution: the quotient of polynomials whose largest
/// relative error is smallest, 2^-27.4. Pre: 0 <= z <= 14 or NaN.
[[gnu::always_inline]] inline float scaled_normal_tail(float z) {
  float p = 0.00407749634F;
  p = fused(p, z, 0.0403719356F);
  p = fused(p, z, 0.182460211F);
  p = fused(p, z, 0.437249056F);
  p = fused(p, z, 0.5F);
  float q = 0.0102206389F;
  q = fused(q, z, 0.101204245F);
  q = fused(q, z, 0.467424759F);
  q = fused(q, z, 1.19928454F);
  q = fused(q, z, 1.67238307F);
  q = fused(q, z, 1.0F);
  return p / q;
}

/// The same within 2^-54.1. Pre: 0 <= z <= 39 or NaN.
[[gnu::always_inline]] inline double scaled_normal_tail(double z) {
  double p = 1.3853426613216202e-6;
  p = std::fma(p, z, 3.7246355937257117e-5);
  p = std::fma(p, z, 0.00049033344724556346);
  p = std::fma(p, z, 0.0040887440179151609);
  p = std::fma(p, z, 0.023619784729292067);
  p = std::fma(p, z, 0.097690817815153026);
  p = std::fma(p, z, 0.28931383985186424);
  p = std::fma(p, z, 0.59402023938645275);
  p = std::fma(p, z, 0.77485618070048430);
  p = std::fma(p, z, 0.5);
  double q = 3.4725390849316466e-6;
  q = std::fma(q, z, 9.3362768917162905e-5);
  q = std::fma(q, z, 0.0012325562221473567);
  q = std::fma(q, z, 0.010342324120759105);
  q = std::fma(q, z, 0.060428159273544407);
  q = std::fma(q, z, 0.25493679020831694);
  q = std::fma(q, z, 0.78198507370123555);
  q = std::fma(q, z, 1.7142942323102389);
  q = std::fma(q, z, 2.5611518179879825);
  q = std::fma(q, z, 2.3475969222038239);
  q = std::fma(q, z, 1.0);
  return p / q;
}

/// The standard normal distribution at x.
template <typename T>
struct NormalAt {
  T density;  ///< exp(-x^2 / 2) / sqrt(2 pi)
  T below;    ///< Phi(x) = 0.5 erfc(-x / sqrt(2))
};

/// Phi(x) within 2 units in the last place for x > 0, else within 5 where exp(-x^2 / 2) is a normal
/// number: x > -13.2, in double x > -37.6.
template <typename T>
[[gnu::always_inline]] inline NormalAt<T> normal_at(T x) {
  constexpr T kMost = sizeof(T) == sizeof(float) ? T{14} : T{39};
  const T magnitude = std::fabs(x);
  const T z = magnitude > kMost ? kMost : magnitude;
  const T square = z * z;
  // What rounding took from the square, which the exponential magnifies.
  const T rest = std::fma(z, z, -square);
  const T rough = fast_exp(T{-0.5} * square);
  const T power = fused(rough, T{-0.5} * rest, rough);
  const T tail = power * scaled_normal_tail(z);
  return {static_cast<T>(0.39894228040143267794) * power, x < T{0} ? tail : T{1} - tail};
}

}  // namespace strata::ops
