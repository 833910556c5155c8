#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/io/dataset.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/class_counts.hpp"
#include "strata/train/stop_polls.hpp"

namespace strata::train {

/// Mean loss per target and accuracy over a data set.
struct EvaluationResult {
  double loss = 0.0;
  double accuracy = 0.0;  ///< 0 to 1; meaningless for regression
  std::int64_t samples = 0;
};

/// The result on one line, as in "loss 0.1234, accuracy 96.10 % over 2,000 samples".
[[nodiscard]] std::string text_of(const plan::Plan& plan, const EvaluationResult& result);

/// Throws Error(kData) where the samples of a data set do not match the data set that the model is
/// trained on.
void require_fits(const plan::Plan& plan, const io::DatasetInfo& info);

/// The most answers that evaluate() gives.
inline constexpr std::int64_t kMostAnswers = 16;

/// Evaluates the samples of a data set in order: all of them, or train.evaluate_batches global
/// batches. Every rank gets the result, with the same bits on every grid. `counts`, unless null,
/// receives the confusion matrix of all samples on every rank; `answers`, unless null, the classes
/// that the model gives the first samples, at most kMostAnswers. `polls`, unless null, can end the
/// evaluation early. Returns: nothing where they did, on all ranks.
/// Communication: over the whole grid. Pre: require_fits(); a given `counts` is empty; with
/// `counts` or `answers` counts_classes(). Throws: Error(kData) where a sample is damaged.
[[nodiscard]] std::optional<EvaluationResult> evaluate(
    ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank, comm::Groups& groups,
    pipeline::Executor& executor, const io::Dataset& dataset, ClassCounts* counts,
    std::vector<std::int64_t>* answers, StopPolls* polls);

/// Whether predictions can be counted by class: every rank of the last stage has all outputs of a
/// classifier.
[[nodiscard]] bool counts_classes(const plan::Plan& plan);

}  // namespace strata::train
