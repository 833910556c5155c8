#pragma once

#include <cmath>

#include "strata/ops/update.hpp"

// The updates of one element on every device, in the type that they compute in, and their factors.
namespace strata::ops {

/// The factors of every update without decoupled weight decay.
template <typename T>
struct GradientFactors {
  template <typename Options>
  explicit GradientFactors(const Options& options)
      : rate(static_cast<T>(options.learning_rate)),
        decay(static_cast<T>(options.weight_decay)),
        scale(static_cast<T>(options.gradient_scale)) {}

  T rate;
  T decay;
  T scale;
};

template <typename T>
struct SgdFactors : GradientFactors<T> {
  explicit SgdFactors(const SgdOptions& options)
      : GradientFactors<T>(options), momentum(static_cast<T>(options.momentum)) {}

  T momentum;
};

template <typename T>
struct AdamFactors {
  explicit AdamFactors(const AdamOptions& options)
      : beta1(static_cast<T>(options.beta1)),
        beta2(static_cast<T>(options.beta2)),
        rest1(static_cast<T>(1.0 - options.beta1)),
        rest2(static_cast<T>(1.0 - options.beta2)),
        epsilon(static_cast<T>(options.epsilon)),
        scale(static_cast<T>(options.gradient_scale)) {
    const double step = static_cast<double>(options.step);
    rate = static_cast<T>(options.learning_rate / (1.0 - std::pow(options.beta1, step)));
    root = static_cast<T>(std::sqrt(1.0 - std::pow(options.beta2, step)));
    const bool decoupled = options.decay == DecayKind::kDecoupled;
    decay = static_cast<T>(decoupled ? 0.0 : options.weight_decay);
    keep = static_cast<T>(decoupled ? 1.0 - options.learning_rate * options.weight_decay : 1.0);
  }

  T beta1;
  T beta2;
  T rest1;
  T rest2;
  T epsilon;
  T scale;
  /// Learning rate times m's bias correction.
  T rate;
  /// Square root of v's bias correction.
  T root;
  T decay;
  /// Factor of a weight under decoupled weight decay.
  T keep;
};

template <typename T>
struct AdagradFactors : GradientFactors<T> {
  explicit AdagradFactors(const AdagradOptions& options)
      : GradientFactors<T>(options), epsilon(static_cast<T>(options.epsilon)) {}

  T epsilon;
};

template <typename T>
struct PlainSgd {
  SgdFactors<T> factor;

  constexpr void operator()(T gradient, T& w) const {
    w -= factor.rate * (gradient * factor.scale + factor.decay * w);
  }
};

template <typename T, Switch kNesterov>
struct MomentumSgd {
  SgdFactors<T> factor;

  constexpr void operator()(T gradient, T& velocity, T& w) const {
    const T g = gradient * factor.scale + factor.decay * w;
    const T v = factor.momentum * velocity + g;
    velocity = v;
    w -= factor.rate * (kNesterov == Switch::kOn ? g + factor.momentum * v : v);
  }
};

template <typename T>
struct Adam {
  AdamFactors<T> factor;

  constexpr void operator()(T gradient, T& m, T& v, T& w) const {
    const T g = gradient * factor.scale + factor.decay * w;
    const T first = factor.beta1 * m + factor.rest1 * g;
    const T second = factor.beta2 * v + factor.rest2 * (g * g);
    m = first;
    v = second;
    w = factor.keep * w -
        factor.rate * (first / (std::sqrt(second) / factor.root + factor.epsilon));
  }
};

template <typename T>
struct Adagrad {
  AdagradFactors<T> factor;

  constexpr void operator()(T gradient, T& sum, T& w) const {
    const T g = gradient * factor.scale + factor.decay * w;
    const T total = sum + g * g;
    sum = total;
    w -= factor.rate * (g / (std::sqrt(total) + factor.epsilon));
  }
};

template <typename T>
struct Average {
  T keep;

  constexpr void operator()(T term, T& w) const { w = keep * w + term; }
};

}  // namespace strata::ops
