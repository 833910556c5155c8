#pragma once

#include <vector>

#include "profile.hpp"
#include "run.hpp"
#include "step.hpp"

namespace strata::bench {

/// Changes the knobs of the constants, one at a time, while the sum of Huber losses of
/// log(predicted / measured) falls; prints each round. Reads runs that are in scope, neither judged
/// nor outliers.
void fit(Constants& constants, Predictor& predictor, const std::vector<Run>& runs);

}  // namespace strata::bench
