#include "strata/train/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

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

/// The classes that the model gives the first samples of a data set.
class FirstAnswers {
 public:
  FirstAnswers(const plan::Plan& plan, const plan::RankPlan& rank, std::int64_t count)
      : offsets_(rank.offsets),
        classes_(static_cast<std::size_t>(plan.model->output().shape.back())),
        answers_(static_cast<std::size_t>(count)) {}

  /// Starts the round from `first_sample` on. Returns: whether its outputs are wanted.
  bool begin_round(std::int64_t first_sample) {
    first_sample_ = first_sample;
    microbatches_ = 0;
    return first_sample < std::ssize(answers_);
  }
  /// Adds the outputs of the round's next microbatch.
  void add(const ConstTensorView& logits) {
    auto sample = static_cast<std::size_t>(first_sample_ + offsets_[microbatches_++]);
    with_stored(logits.dtype(), [&]<typename T>(T) {
      const std::span<const T> all = logits.host<T>();
      for (std::size_t at = 0; at < all.size() && sample < answers_.size(); at += classes_) {
        const std::span<const T> row = all.subspan(at, classes_);
        const auto best = std::ranges::max_element(
            row, {}, [](const T& logit) { return static_cast<Compute<T>>(logit); });
        answers_[sample++] = static_cast<double>(best - row.begin());
      }
    });
  }

  /// Communication: over the data groups of the last stage, then the pipeline groups.
  [[nodiscard]] std::vector<std::int64_t> gathered(comm::Groups& groups, std::int64_t last_stage) {
    if (groups.coordinates.pipeline == last_stage) {
      // Of each sample one rank has the answer, the others 0.
      for (comm::Communicator* const group : groups.replicas()) {
        group->all_reduce(
            TensorView(std::span(answers_), Shape{static_cast<std::int64_t>(answers_.size())}));
      }
    }
    groups.pipeline->broadcast(comm::payload_of(std::span(answers_)), last_stage);
    return {answers_.begin(), answers_.end()};
  }

 private:
  std::span<const std::int64_t> offsets_;
  std::size_t classes_;
  std::int64_t first_sample_ = 0;
  std::size_t microbatches_ = 0;
  std::vector<double> answers_;
};

}  // namespace

std::string text_of(const plan::Plan& plan, const EvaluationResult& result) {
  std::string text = fmt::format("loss {}", number_text(result.loss));
  if (is_language_model(plan)) {
    text += fmt::format(", perplexity {}", number_text(std::exp(result.loss), 3));
  }
  if (plan.model->loss() == nn::LossKind::kCrossEntropy) {
    text += fmt::format(", accuracy {:.2f} %", 100.0 * result.accuracy);
  }
  return text + fmt::format(" over {} samples", count_text(result.samples));
}

bool counts_classes(const plan::Plan& plan) {
  return plan.train_data.task == io::Task::kClassification &&
         plan.model->output().placement == nn::Placement::kReplicated;
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
  // Each data set is normalised by its own type and statistics.
  const bool standard = plan.config.data.normalise == io::Normalise::kStandard;
  if (info.input_dtype != trained.input_dtype ||
      (standard && (info.mean != trained.mean || info.deviation != trained.deviation))) {
    fail(ExitCode::kData,
         "the inputs of {} are {} with other statistics or of another type than those of {}, which "
         "are {}; they would be normalised differently, so import both splits together",
         info.path.string(), name_of(info.input_dtype), trained.path.string(),
         name_of(trained.input_dtype));
  }
}

std::optional<EvaluationResult> evaluate(ops::Context& context, const plan::Plan& plan,
                                         const plan::RankPlan& rank, comm::Groups& groups,
                                         pipeline::Executor& executor, const io::Dataset& dataset,
                                         ClassCounts* counts, std::vector<std::int64_t>* answers,
                                         StopPolls* polls) {
  const io::DatasetInfo& info = dataset.info();
  const std::int64_t round_samples = job_batch(plan);
  // In global batches. A job that trains a part reads each in several rounds.
  const std::int64_t limit = plan.config.train.evaluate_batches;
  const std::int64_t samples = limit > 0 && limit < info.samples / plan.config.batch.global + 1
                                   ? std::min(info.samples, limit * plan.config.batch.global)
                                   : info.samples;
  const std::int64_t rounds = (samples + round_samples - 1) / round_samples;
  SampleFeed feed(context, dataset, rank, evaluation_loader(plan, rank, rounds));

  pipeline::OutputObserver see;
  // All ranks of a tensor group have the same outputs.
  if (counts != nullptr) {
    see = [counts, &context, &groups](const ConstTensorView& outputs,
                                      const ConstTensorView& targets, std::int64_t valid) {
      groups.engine->drain();
      counts->add(device::HostView(outputs, context.stream()).view(),
                  device::HostView(targets, context.stream()).view(), valid);
    };
  }
  std::optional<FirstAnswers> first;
  if (answers != nullptr) {
    first.emplace(plan, rank, std::min(samples, kMostAnswers));
  }

  // The sum of losses and the number of correct predictions, added in the order of samples.
  std::vector<double> totals(2, 0.0);
  for (std::int64_t round = 0; round < rounds; ++round) {
    if (polls != nullptr && polls->poll() == StopRequest::kStop) {
      return std::nullopt;
    }
    feed.next();
    const auto see_first = [&](const ConstTensorView& outputs, const ConstTensorView& targets,
                               std::int64_t valid) {
      groups.engine->drain();
      first->add(device::HostView(outputs, context.stream()).view());
      if (see) {
        see(outputs, targets, valid);
      }
    };
    const bool wanted = first && first->begin_round(round * round_samples - first_of_job(plan));
    std::vector<double> mine;
    for (std::int64_t part = 0; part < plan.parts_per_rank; ++part) {
      BatchSource source(plan, rank.offsets, feed, round * round_samples - first_of_job(plan),
                         samples, part * plan.microbatches);
      for (const ops::LossSums& sums : executor.evaluate(
               plan.evaluation, source, wanted ? pipeline::OutputObserver(see_first) : see)) {
        mine.push_back(sums.loss);
        mine.push_back(static_cast<double>(sums.correct));
      }
    }
    if (mine.empty()) {
      continue;
    }
    for (comm::Communicator* const group : groups.replicas()) {
      mine = comm::gathered_rows(*group, std::span(std::as_const(mine)));
    }
    for (std::size_t i = 0; i < mine.size(); ++i) {
      totals[i % 2] += mine[i];
    }
  }
  groups.pipeline->broadcast(comm::payload_of(std::span(totals)), loss_stage(plan));
  if (counts != nullptr) {
    for (comm::Communicator* const group : groups.replicas()) {
      counts->add_up(*group);
    }
    counts->take_from(*groups.pipeline, loss_stage(plan));
  }
  if (first) {
    *answers = first->gathered(groups, loss_stage(plan));
  }
  const auto targets = static_cast<double>(samples * plan.targets_per_sample);
  return EvaluationResult{
      .loss = totals[0] / targets, .accuracy = totals[1] / targets, .samples = samples};
}

}  // namespace strata::train
