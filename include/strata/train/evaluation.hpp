#pragma once

#include <cstdint>

#include "strata/comm/groups.hpp"
#include "strata/io/dataset.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/plan.hpp"

namespace strata::train {

/// Mean loss and share of right answers over a data set.
struct EvaluationResult {
  double loss = 0.0;
  double accuracy = 0.0;  ///< 0 to 1; meaningless for regression
  std::int64_t samples = 0;
};

/// Runs the model forward over every sample of a data set once, in order. The result is the same
/// bits on every grid, and known to every rank. Communication: over the whole grid. Throws:
/// Error(kData) where the data do not fit the model.
[[nodiscard]] EvaluationResult evaluate(const Plan& plan, const RankPlan& rank,
                                        comm::Groups& groups, pipeline::Executor& executor,
                                        const io::Dataset& dataset);

}  // namespace strata::train
