#include "strata/optim/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace strata::optim {

double learning_rate(const LearningRateOptions& o, std::int64_t step) {
  const std::int64_t done = step - 1;
  if (done < o.warmup_steps) {
    return o.peak * static_cast<double>(step) / static_cast<double>(o.warmup_steps + 1);
  }
  const auto since = static_cast<double>(done - o.warmup_steps);
  const auto span = static_cast<double>(std::max<std::int64_t>(1, o.decay_steps - o.warmup_steps));
  const double progress = std::min(1.0, since / span);
  switch (o.kind) {
    case LearningRateKind::kConstant:
      break;
    case LearningRateKind::kStep:
      return o.peak * std::pow(o.factor, std::floor(since / static_cast<double>(o.every_steps)));
    case LearningRateKind::kLinear:
      return o.minimum + (o.peak - o.minimum) * (1.0 - progress);
    case LearningRateKind::kCosine:
      return o.minimum + (o.peak - o.minimum) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return o.peak;
}

}  // namespace strata::optim
