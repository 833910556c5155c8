#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace strata::bench {

double quantile(std::vector<double> values, double part) {
  if (values.empty()) {
    return 0.0;
  }
  std::ranges::sort(values);
  const double at = part * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

}  // namespace strata::bench
