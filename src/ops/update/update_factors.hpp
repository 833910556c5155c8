#pragma once

#include <cmath>

#include "strata/ops/update.hpp"

// What the updates of every device multiply with, in the type that they compute in.
namespace strata::ops {

template <typename T>
struct SgdFactors {
  explicit SgdFactors(const SgdOptions& options)
      : rate(static_cast<T>(options.learning_rate)),
        momentum(static_cast<T>(options.momentum)),
        decay(static_cast<T>(options.weight_decay)),
        scale(static_cast<T>(options.gradient_scale)) {}

  T rate;
  T momentum;
  T decay;
  T scale;
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
  /// The learning rate with m's bias correction in it.
  T rate;
  /// The root of v's bias correction.
  T root;
  T decay;
  /// What decoupled weight decay leaves of a weight.
  T keep;
};

template <typename T>
struct AdagradFactors {
  explicit AdagradFactors(const AdagradOptions& options)
      : rate(static_cast<T>(options.learning_rate)),
        epsilon(static_cast<T>(options.epsilon)),
        decay(static_cast<T>(options.weight_decay)),
        scale(static_cast<T>(options.gradient_scale)) {}

  T rate;
  T epsilon;
  T decay;
  T scale;
};

}  // namespace strata::ops
