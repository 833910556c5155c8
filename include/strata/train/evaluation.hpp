#pragma once

#include <cstdint>
#include <string>

#include "strata/comm/groups.hpp"
#include "strata/io/dataset.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/class_counts.hpp"

namespace strata::train {

/// Mean loss of a target and share of right answers over a data set.
struct EvaluationResult {
  double loss = 0.0;
  double accuracy = 0.0;  ///< 0 to 1; meaningless for regression
  std::int64_t samples = 0;
};

/// The result in a line, as in "loss 0.1234, accuracy 96.10 % over 2,000 samples".
[[nodiscard]] std::string text_of(const plan::Plan& plan, const EvaluationResult& result);

/// Throws Error(kData) where the samples of a data set do not fit a model that is trained on
/// another.
void require_fits(const plan::Plan& plan, const io::DatasetInfo& info);

/// Runs the model forward over the samples of a data set once, in order: all of them, or as many
/// global batches as train.evaluate_batches says. The result is the same
/// bits on every grid, and known to every rank. Communication: over the whole grid. Pre:
/// the data fit the model; `counts`, where given, is empty and counts_classes(). It then holds the
/// answers to all samples, on every rank. Throws: Error(kData) where a sample is damaged.
[[nodiscard]] EvaluationResult evaluate(ops::Context& context, const plan::Plan& plan,
                                        const plan::RankPlan& rank, comm::Groups& groups,
                                        pipeline::Executor& executor, const io::Dataset& dataset,
                                        ClassCounts* counts = nullptr);

/// Whether answers can be counted by class: a classifier's, whose outputs every rank holds whole.
[[nodiscard]] bool counts_classes(const plan::Plan& plan);

}  // namespace strata::train
