#pragma once

#include <cmath>

#include "strata/ops/update.hpp"

// The factors of the updates on every device, in the type that an update computes in.
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

}  // namespace strata::ops
