#include "strata/train/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/comm/values.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/device/host_copy.hpp"

#include "replication/sample_feed.hpp"

namespace strata::train {

namespace {

std::string targets_text(const io::DatasetInfo& info) {
  if (info.task == io::Task::kNextToken) {
    return fmt::format("{} token ids", info.classes);
  }
  return info.task == io::Task::kClassification
             ? fmt::format("{} classes", info.classes)
             : fmt::format("values of {}", info.target_shape.text());
}

/// Appends elements, as numbers of 64 bits.
void append(const ConstTensorView& tensor, std::vector<double>& to) {
  if (tensor.dtype() == DType::kInt64) {
    std::ranges::transform(tensor.host<std::int64_t>(), std::back_inserter(to),
                           [](std::int64_t label) { return static_cast<double>(label); });
    return;
  }
  with_stored(tensor.dtype(), [&]<typename T>(T) {
    std::ranges::transform(tensor.host<T>(), std::back_inserter(to), [](const T& element) {
      return static_cast<double>(static_cast<Compute<T>>(element));
    });
  });
}

/// What the model gives the samples of a round, and their targets: a block of each microbatch.
class RoundOutputs {
 public:
  /// `outputs`, `targets`: of a sample.
  RoundOutputs(const plan::Plan& plan, const plan::RankPlan& rank, std::int64_t outputs,
               std::int64_t targets)
      : microbatch_(static_cast<std::size_t>(plan.config.batch.micro)),
        outputs_(static_cast<std::size_t>(outputs)),
        targets_(static_cast<std::size_t>(targets)),
        first_of_job_(first_of_job(plan)),
        offsets_(rank.offsets) {}

  void begin_round() { mine_.clear(); }
  /// Adds own microbatch `m` of the round.
  void add(std::int64_t m, const ConstTensorView& outputs, const ConstTensorView& targets) {
    begin(m);
    append(outputs, mine_);
    append(targets, mine_);
  }
  void add(std::int64_t m, std::span<const nn::MicrobatchLoss::Pair> pairs) {
    begin(m);
    std::ranges::transform(pairs, std::back_inserter(mine_), &nn::MicrobatchLoss::Pair::difference);
  }
  void add(std::int64_t m, std::span<const nn::MicrobatchLoss::Sample> samples) {
    begin(m);
    for (const nn::MicrobatchLoss::Sample& sample : samples) {
      mine_.insert(mine_.end(), {sample.loss, sample.counted});
    }
  }

  /// Calls use(index in the round, outputs, targets) for each sample, in order.
  /// Communication: over the data groups of the last stage.
  template <typename Use>
  void for_each(comm::Groups& groups, const Use& use) {
    std::vector<double> all = std::move(mine_);
    for (comm::Communicator* const group : groups.replicas()) {
      all = comm::gathered_rows(*group, std::span(std::as_const(all)));
    }
    std::map<std::int64_t, std::span<const double>> blocks;
    const std::size_t width = 1 + microbatch_ * (outputs_ + targets_);
    for (std::size_t at = 0; at < all.size(); at += width) {
      blocks[static_cast<std::int64_t>(all[at])] = std::span(all).subspan(at + 1, width - 1);
    }
    for (const auto& [first, block] : blocks) {
      for (std::size_t row = 0; row < microbatch_; ++row) {
        use(first + static_cast<std::int64_t>(row), block.subspan(row * outputs_, outputs_),
            block.subspan(microbatch_ * outputs_ + row * targets_, targets_));
      }
    }
  }

 private:
  void begin(std::int64_t m) {
    mine_.push_back(static_cast<double>(offsets_[static_cast<std::size_t>(m)] - first_of_job_));
  }

  std::size_t microbatch_;
  std::size_t outputs_;
  std::size_t targets_;
  std::int64_t first_of_job_;
  std::span<const std::int64_t> offsets_;
  std::vector<double> mine_;
};

/// What follows from the outputs of single samples, on the ranks of the last stage.
class SampleFigures {
 public:
  /// `samples`: of the first data set.
  SampleFigures(const plan::Plan& plan, const EvaluationExtras& extras, std::int64_t samples)
      : plan_(plan), extras_(extras) {
    if (plan.model->loss() == nn::LossKind::kMeanSquaredError && gives_whole_outputs(plan)) {
      errors_.emplace(static_cast<std::size_t>(plan.model->output().shape.count()));
    }
    if (extras.counts != nullptr && extras.counts->classes() == 2) {
      scores_.emplace();
    }
    if (extras.answers != nullptr) {
      extras.answers->assign(static_cast<std::size_t>(std::min(samples, kMostAnswers)), 0);
    }
  }

  /// Whether they need the outputs of the round that begins with `first_sample`.
  [[nodiscard]] bool need(std::int64_t first_sample) const {
    return errors_ || scores_ || extras_.observer ||
           (extras_.answers != nullptr && first_sample < std::ssize(*extras_.answers));
  }

  void add(std::int64_t sample, std::span<const double> outputs, std::span<const double> targets) {
    predictions_.assign(outputs.begin(), outputs.end());
    if (errors_) {
      values_.assign(targets.begin(), targets.end());
      for (std::size_t i = 0; i < values_.size(); ++i) {
        predictions_[i] = in_units_of_data(plan_, i, predictions_[i]);
        values_[i] = in_units_of_data(plan_, i, values_[i]);
      }
      errors_->add(predictions_, values_);
    }
    if (scores_) {
      scores_->push_back(outputs[1] - outputs[0]);
      labels_.push_back(static_cast<std::int64_t>(targets.front()));
    }
    if (extras_.answers != nullptr && sample < std::ssize(*extras_.answers)) {
      (*extras_.answers)[static_cast<std::size_t>(sample)] =
          std::ranges::max_element(outputs) - outputs.begin();
    }
    if (extras_.observer) {
      round_.insert(round_.end(), predictions_.begin(), predictions_.end());
    }
  }

  /// Tells the observer, on all ranks, of the samples of the round that begins with `first_sample`.
  /// Communication: over the pipeline group, where there is an observer.
  void end_round(comm::Groups& groups, std::int64_t first_sample, std::int64_t samples) {
    if (!extras_.observer) {
      return;
    }
    const auto outputs = static_cast<std::size_t>(plan_.model->output().shape.count());
    round_.resize(static_cast<std::size_t>(samples) * outputs);
    groups.along(grid::Axis::kPipeline)
        .broadcast(comm::payload_of(std::span(round_)), loss_stage(plan_));
    for (std::int64_t i = 0; i < samples; ++i) {
      extras_.observer(
          first_sample + i,
          std::span(std::as_const(round_)).subspan(static_cast<std::size_t>(i) * outputs, outputs));
    }
    round_.clear();
  }

  /// Completes the result on all ranks. Communication: over the pipeline group.
  void give(comm::Groups& groups, std::int64_t last_stage, EvaluationResult& result) const {
    if (extras_.answers != nullptr) {
      groups.along(grid::Axis::kPipeline)
          .broadcast(comm::payload_of(std::span(*extras_.answers)), last_stage);
    }
    const bool is_last = groups.along(grid::Axis::kPipeline).rank() == last_stage;
    if (errors_) {
      result.values =
          comm::broadcast_from(groups.along(grid::Axis::kPipeline),
                               is_last ? errors_->figures() : ValueFigures(), last_stage);
    }
    if (scores_) {
      constexpr double kNone = -1.0;
      const double area = comm::broadcast_from(
          groups.along(grid::Axis::kPipeline),
          is_last ? area_under_curve(*scores_, labels_).value_or(kNone) : kNone, last_stage);
      result.area = area == kNone ? std::nullopt : std::optional(area);
    }
  }

 private:
  const plan::Plan& plan_;
  const EvaluationExtras& extras_;
  std::optional<ValueErrors> errors_;
  std::optional<std::vector<double>> scores_;
  std::vector<std::int64_t> labels_;
  std::vector<double> predictions_;
  std::vector<double> values_;
  std::vector<double> round_;  ///< the predictions of a round
};

}  // namespace

std::string text_of(const plan::Plan& plan, const EvaluationResult& result) {
  std::string text = fmt::format("loss {}", number_text(result.loss));
  if (has_perplexity(plan)) {
    text += fmt::format(", perplexity {}", number_text(std::exp(result.loss), 3));
  }
  if (plan.model->loss() == nn::LossKind::kCrossEntropy) {
    text += fmt::format(", accuracy {:.2f} %", 100.0 * result.accuracy);
  }
  if (result.margin) {
    text += fmt::format(", margin {}", number_text(*result.margin));
  }
  if (result.values) {
    text += fmt::format(", MAE {}, RMSE {}, R2 {}", number_text(result.values->mean_absolute_error),
                        number_text(result.values->root_mean_square_error),
                        number_text(result.values->r2));
  }
  text += fmt::format(" over {} samples", count_text(result.samples));
  std::vector<std::string> sets;
  for (const auto& [name, loss] :
       std::span(result.sets).first(result.sets.size() <= kMostSets ? result.sets.size() : 0)) {
    sets.push_back(fmt::format("{} {}", name, number_text(loss)));
  }
  return sets.empty() ? text : text + fmt::format(", of {}", fmt::join(sets, ", "));
}

bool gives_whole_outputs(const plan::Plan& plan) {
  return plan.train_data.task != io::Task::kNextToken &&
         plan.model->output().placement == nn::Placement::kReplicated;
}

std::vector<DocumentLoss> document_losses(const io::Dataset& dataset,
                                          std::span<const nn::MicrobatchLoss::Sample> samples) {
  const io::Documents& documents = dataset.documents();
  std::vector<DocumentLoss> losses(documents.ends.size());
  for (std::int64_t i = 0; i < std::ssize(samples); ++i) {
    const auto [loss, counted] = samples[static_cast<std::size_t>(i)];
    DocumentLoss& of =
        losses[static_cast<std::size_t>(documents.index_of(dataset.pieces(i).front().first))];
    of.loss += loss;
    of.targets += static_cast<std::int64_t>(counted);
  }
  return losses;
}

bool counts_classes(const plan::Plan& plan) {
  return plan.train_data.task == io::Task::kClassification && gives_whole_outputs(plan);
}

void require_fits(const plan::Plan& plan, const io::DatasetInfo& info) {
  const io::DatasetInfo& trained = plan.train_data;
  if (info.input_shape != trained.input_shape || info.target_shape != trained.target_shape ||
      info.task != trained.task || info.classes > trained.classes) {
    fail(ExitCode::kData,
         "{} has inputs of {} with {} as targets, but the model is trained on {} with inputs of {} "
         "with {}; import both splits together",
         info.path.string(), info.input_shape.text(), targets_text(info), trained.path.string(),
         trained.input_shape.text(), targets_text(trained));
  }
  if (info.task == io::Task::kNextToken) {
    if (info.tokenizer_checksum != trained.tokenizer_checksum) {
      fail(ExitCode::kData,
           "{} and {} were made with different tokenizers, so that their ids mean different text; "
           "import both splits together",
           info.path.string(), trained.path.string());
    }
    return;
  }
  if (info.input_dtype != trained.input_dtype) {
    fail(ExitCode::kData,
         "the inputs of {} are {}, those of {} are {}; they would be normalised differently, so "
         "import both splits together",
         info.path.string(), name_of(info.input_dtype), trained.path.string(),
         name_of(trained.input_dtype));
  }
}

namespace {

/// The samples of a data set that are evaluated. The limit is in global batches; a job that trains
/// a part reads each in several rounds.
std::int64_t evaluated_samples(const plan::Plan& plan, const io::DatasetInfo& info,
                               const EvaluationExtras& extras) {
  const bool whole = extras.differences != nullptr || extras.samples != nullptr;
  const std::int64_t limit = whole ? 0 : plan.config.train.evaluate_batches;
  return limit > 0 && limit < info.samples / plan.config.batch.global + 1
             ? std::min(info.samples, limit * plan.config.batch.global)
             : info.samples;
}

/// Of one data set, whose samples are counted from `before` on in `figures`, which are completed
/// with extras.counts behind the last set.
std::optional<EvaluationResult> evaluate_one(ops::Context& context, const plan::Plan& plan,
                                             const plan::RankPlan& rank, comm::Groups& groups,
                                             pipeline::Executor& executor,
                                             const io::Dataset& dataset,
                                             const EvaluationExtras& extras, std::int64_t before,
                                             SampleFigures& figures) {
  const std::int64_t round_samples = job_batch(plan);
  const std::int64_t samples = evaluated_samples(plan, dataset.info(), extras);
  const std::int64_t rounds = (samples + round_samples - 1) / round_samples;
  SampleFeed feed(context, dataset, rank, evaluation_loader(plan, rank, rounds));
  RoundOutputs outputs(plan, rank, plan.model->output().shape.count(),
                       plan.train_data.target_shape.count());
  RoundOutputs differences(plan, rank, 1, 0);
  if (extras.differences != nullptr) {
    extras.differences->assign(static_cast<std::size_t>(samples), 0.0);
  }
  RoundOutputs losses(plan, rank, 2, 0);
  if (extras.samples != nullptr) {
    extras.samples->assign(static_cast<std::size_t>(samples), {});
  }

  // The sum of losses, the numbers of correct predictions and of counted targets, and the sum of
  // margins, added in the order of samples.
  std::vector<double> totals(4, 0.0);
  for (std::int64_t round = 0; round < rounds; ++round) {
    if (extras.polls != nullptr && extras.polls->poll() == StopRequest::kStop) {
      return std::nullopt;
    }
    feed.next();
    const std::int64_t first_sample = round * round_samples;
    const bool wanted = figures.need(before + first_sample);
    outputs.begin_round();
    differences.begin_round();
    losses.begin_round();
    std::vector<double> mine;
    for (std::int64_t part = 0; part < plan.parts_per_rank; ++part) {
      const std::int64_t first = part * plan.microbatches;
      // All ranks of a tensor group have the same outputs.
      const auto see = [&](std::int64_t m, const ConstTensorView& given,
                           const ConstTensorView& targets, std::int64_t valid) {
        groups.engine->drain();
        const device::HostView given_here(given, context.stream());
        const device::HostView targets_here(targets, context.stream());
        if (extras.counts != nullptr) {
          extras.counts->add(given_here.view(), targets_here.view(), valid);
        }
        if (wanted) {
          outputs.add(first + m, given_here.view(), targets_here.view());
        }
      };
      BatchSource source(plan, rank.offsets, feed, first_sample - first_of_job(plan), samples,
                         first);
      std::int64_t m = first;
      for (const nn::MicrobatchLoss& sums :
           executor.evaluate(plan.evaluation, source,
                             wanted || extras.counts != nullptr ? pipeline::OutputObserver(see)
                                                                : pipeline::OutputObserver())) {
        mine.push_back(sums.loss);
        mine.push_back(static_cast<double>(sums.correct));
        mine.push_back(static_cast<double>(sums.counted));
        mine.push_back(sums.margins());
        if (extras.differences != nullptr) {
          differences.add(m, sums.pairs);
        }
        if (extras.samples != nullptr) {
          losses.add(m, sums.samples);
        }
        ++m;
      }
    }
    const bool is_last = !mine.empty();
    if (is_last) {
      for (comm::Communicator* const group : groups.replicas()) {
        mine = comm::gathered_rows(*group, std::span(std::as_const(mine)));
      }
      for (std::size_t i = 0; i < mine.size(); ++i) {
        totals[i % totals.size()] += mine[i];
      }
    }
    if (is_last && wanted) {
      outputs.for_each(groups, [&](std::int64_t index, std::span<const double> given,
                                   std::span<const double> targets) {
        if (first_sample + index < samples) {
          figures.add(before + first_sample + index, given, targets);
        }
      });
    }
    if (is_last && extras.differences != nullptr) {
      differences.for_each(groups, [&](std::int64_t index, std::span<const double> given,
                                       std::span<const double> /*none*/) {
        if (first_sample + index < samples) {
          (*extras.differences)[static_cast<std::size_t>(first_sample + index)] = given.front();
        }
      });
    }
    if (is_last && extras.samples != nullptr) {
      losses.for_each(groups, [&](std::int64_t index, std::span<const double> given,
                                  std::span<const double> /*none*/) {
        if (first_sample + index < samples) {
          (*extras.samples)[static_cast<std::size_t>(first_sample + index)] = {.loss = given[0],
                                                                               .counted = given[1]};
        }
      });
    }
    const std::int64_t in_round = std::min(round_samples, samples - first_sample);
    figures.end_round(groups, before + first_sample, in_round);
    if (extras.progress) {
      extras.progress(before + first_sample + in_round);
    }
  }
  groups.along(grid::Axis::kPipeline)
      .broadcast(comm::payload_of(std::span(totals)), loss_stage(plan));
  if (extras.differences != nullptr) {
    groups.along(grid::Axis::kPipeline)
        .broadcast(comm::payload_of(std::span(*extras.differences)), loss_stage(plan));
  }
  if (extras.samples != nullptr) {
    groups.along(grid::Axis::kPipeline)
        .broadcast(comm::payload_of(std::span(*extras.samples)), loss_stage(plan));
  }
  const double targets = std::max(1.0, totals[2]);
  EvaluationResult result{.loss = totals[0] / targets,
                          .accuracy = totals[1] / targets,
                          .samples = samples,
                          .targets = static_cast<std::int64_t>(totals[2])};
  if (compares_documents(plan)) {
    result.margin = totals[3] / targets;
  }
  return result;
}

}  // namespace

std::optional<EvaluationResult> evaluate(ops::Context& context, const plan::Plan& plan,
                                         const plan::RankPlan& rank, comm::Groups& groups,
                                         pipeline::Executor& executor, const io::Dataset& dataset,
                                         const EvaluationExtras& extras) {
  const bool several = !dataset.sets().empty();
  const std::span<const io::Dataset> sets =
      several ? std::span(dataset.sets()) : std::span(&dataset, 1);
  SampleFigures figures(plan, extras, evaluated_samples(plan, sets.front().info(), extras));
  const auto complete = [&](EvaluationResult& result) {
    if (extras.counts != nullptr) {
      for (comm::Communicator* const group : groups.replicas()) {
        extras.counts->add_up(*group);
      }
      extras.counts->take_from(groups.along(grid::Axis::kPipeline), loss_stage(plan));
    }
    figures.give(groups, loss_stage(plan), result);
  };
  if (!several) {
    std::optional<EvaluationResult> result =
        evaluate_one(context, plan, rank, groups, executor, dataset, extras, 0, figures);
    if (result) {
      complete(*result);
    }
    return result;
  }
  EvaluationResult all;
  std::vector<double> differences;
  std::vector<nn::MicrobatchLoss::Sample> samples;
  for (const io::Dataset& set : sets) {
    EvaluationExtras own{.counts = extras.counts,
                         .progress = extras.progress,
                         .polls = extras.polls,
                         .observer = extras.observer};
    std::vector<double> of_set;
    own.differences = extras.differences != nullptr ? &of_set : nullptr;
    std::vector<nn::MicrobatchLoss::Sample> samples_of_set;
    own.samples = extras.samples != nullptr ? &samples_of_set : nullptr;
    const std::optional<EvaluationResult> result =
        evaluate_one(context, plan, rank, groups, executor, set, own, all.samples, figures);
    if (!result) {
      return std::nullopt;
    }
    const auto targets = static_cast<double>(result->targets);
    all.loss += targets * result->loss;
    all.accuracy += targets * result->accuracy;
    all.samples += result->samples;
    all.targets += result->targets;
    if (result->margin) {
      all.margin = all.margin.value_or(0.0) + targets * *result->margin;
    }
    all.sets.emplace_back(set.info().path.string(), result->loss);
    differences.insert(differences.end(), of_set.begin(), of_set.end());
    samples.insert(samples.end(), samples_of_set.begin(), samples_of_set.end());
  }
  const double targets = std::max(1.0, static_cast<double>(all.targets));
  all.loss /= targets;
  all.accuracy /= targets;
  if (all.margin) {
    *all.margin /= targets;
  }
  complete(all);
  if (extras.differences != nullptr) {
    *extras.differences = std::move(differences);
  }
  if (extras.samples != nullptr) {
    *extras.samples = std::move(samples);
  }
  return all;
}

}  // namespace strata::train
