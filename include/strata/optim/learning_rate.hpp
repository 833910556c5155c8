#pragma once

#include <cstdint>

#include "strata/core/enum_names.hpp"

namespace strata::optim {

enum class LearningRateKind { kConstant, kStep, kLinear, kCosine };

constexpr auto enum_names(LearningRateKind) {
  return names_in_order("constant", "step", "linear", "cosine");
}

/// The learning rate as a function of the step.
struct LearningRateOptions {
  LearningRateKind kind = LearningRateKind::kConstant;
  double peak = 1e-3;
  /// The final rate of linear and cosine.
  double minimum = 0.0;
  /// Steps of linear warm-up at the start.
  std::int64_t warmup_steps = 0;
  /// Steps after which linear and cosine reach the minimum, at the step that follows.
  std::int64_t decay_steps = 1;
  /// kStep: the rate is multiplied by `factor` every `every_steps` steps.
  std::int64_t every_steps = 1;
  double factor = 0.1;
};

/// The rate of step `step`; 1 is the first. The first warmup_steps steps have the rate peak * step
/// / (warmup_steps + 1); the decay follows. Source: the cosine is from Loshchilov, Hutter, "SGDR",
/// arXiv 1608.03983.
[[nodiscard]] double learning_rate(const LearningRateOptions& options, std::int64_t step);

}  // namespace strata::optim
