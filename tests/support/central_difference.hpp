#pragma once

#include <functional>

namespace strata::test {

/// The derivative of loss() with respect to `at`, which keeps its value, from `step` on either
/// side.
inline double central_difference(const std::function<double()>& loss, double& at, double step) {
  const double here = at;
  at = here + step;
  const double above = loss();
  at = here - step;
  const double below = loss();
  at = here;
  return (above - below) / (2.0 * step);
}

}  // namespace strata::test
