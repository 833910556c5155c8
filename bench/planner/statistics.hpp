#pragma once

#include <vector>

namespace strata::bench {

/// Between neighbours in proportion. 0 of nothing.
[[nodiscard]] double quantile(std::vector<double> values, double part);

}  // namespace strata::bench
