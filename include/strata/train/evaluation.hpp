#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/io/dataset.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/class_counts.hpp"
#include "strata/train/figures.hpp"
#include "strata/train/stop_polls.hpp"

namespace strata::train {

/// Mean loss per target and accuracy over a data set; of pairs, the share with a positive margin.
struct EvaluationResult {
  double loss = 0.0;
  double accuracy = 0.0;  ///< 0 to 1; meaningless for regression
  std::int64_t samples = 0;
  std::int64_t targets = 0;  ///< that count
  /// Of several data sets: the file and the mean loss of each.
  std::vector<std::pair<std::string, double>> sets;
  std::optional<double> margin;        ///< mean, of pairs of answers
  std::optional<ValueFigures> values;  ///< of regression
  /// Of two classes, where they are counted (area_under_curve()).
  std::optional<double> area;
};

/// The result on one line, as in "loss 0.1234, accuracy 96.10 % over 2,000 samples".
[[nodiscard]] std::string text_of(const plan::Plan& plan, const EvaluationResult& result);

/// Throws Error(kData) where the samples of a data set do not match the data set that the model is
/// trained on.
void require_fits(const plan::Plan& plan, const io::DatasetInfo& info);

/// The most answers that evaluate() gives.
inline constexpr std::int64_t kMostAnswers = 16;

/// Called with the number of a sample and what the model gives it: logits, or values in the data's
/// units.
using SampleObserver = std::function<void(std::int64_t sample, std::span<const double> outputs)>;

/// What a model's loss is on one document.
struct DocumentLoss {
  double loss = 0.0;         ///< the sum over its targets
  std::int64_t targets = 0;  ///< that count
};

/// The losses of a data set's documents, from those of its samples (EvaluationExtras::samples).
/// Pre: each sample is of one document (io::Packing::kDocuments).
[[nodiscard]] std::vector<DocumentLoss> document_losses(
    const io::Dataset& dataset, std::span<const nn::MicrobatchLoss::Sample> samples);

/// What evaluate() gives beside its result; nothing by default.
struct EvaluationExtras {
  /// Receives the confusion matrix of all samples on every rank. Pre: empty.
  ClassCounts* counts = nullptr;
  /// Receives the classes that the model gives the first samples, at most kMostAnswers.
  std::vector<std::int64_t>* answers = nullptr;
  /// Receives what the weights say of all pairs (nn::MicrobatchLoss::Pair::difference), on every
  /// rank.
  std::vector<double>* differences = nullptr;
  /// Receives the loss of each sample on every rank. Pre: nn::LossOptions::per_sample; no pairs.
  std::vector<nn::MicrobatchLoss::Sample>* samples = nullptr;
  /// Is called on every rank with the number of samples done, of all data sets.
  std::function<void(std::int64_t)> progress;
  /// Can end the evaluation early.
  StopPolls* polls = nullptr;
  /// Is called on every rank, in the order of samples.
  SampleObserver observer;
};

/// Evaluates the samples of a data set in order: all of them, or without extras.differences and
/// extras.samples train.evaluate_batches global batches; several data sets (Dataset::sets()) one
/// after the other. Every rank gets the result, with the same bits on every grid. Returns: nothing
/// where polls ended it, on all ranks. Communication: over the whole grid. Pre: require_fits();
/// with counts, answers or an observer gives_whole_outputs(), with counts or answers of a
/// classifier. Throws: Error(kData) where a sample is damaged.
[[nodiscard]] std::optional<EvaluationResult> evaluate(
    ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank, comm::Groups& groups,
    pipeline::Executor& executor, const io::Dataset& dataset, const EvaluationExtras& extras);

/// Whether every rank of the last stage has all outputs of a sample.
[[nodiscard]] bool gives_whole_outputs(const plan::Plan& plan);

/// Whether predictions can be counted by class: those of a classifier with whole outputs.
[[nodiscard]] bool counts_classes(const plan::Plan& plan);

}  // namespace strata::train
