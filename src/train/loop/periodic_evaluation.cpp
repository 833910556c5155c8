#include "loop/periodic_evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "strata/comm/values.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/contact_sheet.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"

#include "loop/text_sample.hpp"
#include "record/event_file.hpp"

namespace strata::train {
namespace {

/// The line of an evaluation in metrics.jsonl.
EvaluateRecord evaluate_record(const plan::Plan& plan, std::int64_t step,
                               const EvaluationResult& result) {
  const bool classes = plan.model->loss() == nn::LossKind::kCrossEntropy;
  return {.step = step,
          .loss = result.loss,
          .accuracy = classes ? std::optional(result.accuracy) : std::nullopt,
          .perplexity = has_perplexity(plan) ? std::optional(std::exp(result.loss)) : std::nullopt,
          .margin = result.margin,
          .sets = result.sets};
}

/// Holds the step whose evaluation failed, so that a resumed run trains on.
std::filesystem::path failure_note(const std::filesystem::path& run_directory) {
  return run_directory / "failed-evaluation.txt";
}

/// Does nothing where the note cannot be written.
void note_failed_evaluation(const std::filesystem::path& run_directory, std::int64_t step) {
  std::error_code ignored;
  // Never through a link that something else left there.
  std::filesystem::remove(failure_note(run_directory), ignored);
  std::ofstream(failure_note(run_directory)) << step << "\n";
}

/// What a run that resumes after `step` does about that step's evaluation, which follows the save.
enum class EvaluationLeft { kNone, kDue, kFailed };

EvaluationLeft evaluation_left(const std::filesystem::path& run_directory, std::int64_t step) {
  const std::vector<EvaluateRecord> recorded = evaluations_in(run_directory / "metrics.jsonl");
  if (std::ranges::count(recorded, step, &EvaluateRecord::step) > 0) {
    return EvaluationLeft::kNone;
  }
  std::int64_t failed = -1;
  std::ifstream note(failure_note(run_directory));
  return note >> failed && failed == step ? EvaluationLeft::kFailed : EvaluationLeft::kDue;
}

}  // namespace

void PeriodicEvaluation::open(MetricsFile& metrics, const io::Tokenizer* tokenizer) {
  metrics_ = &metrics;
  tokenizer_ = tokenizer;
  if (decides()) {
    const config::RunConfig& config = plan_.config;
    history_.emplace(std::filesystem::path(config.run.dir) / "metrics.jsonl",
                     config.checkpoint.best);
  }
}

std::optional<StepRequests> PeriodicEvaluation::run(
    std::int64_t step, const std::function<StopRequest()>& stop_request) {
  const config::RunConfig& config = plan_.config;
  StopPolls polls(*setup_.groups.world, stop_request);
  std::vector<std::int64_t> answers;  // to the test images that TensorBoard shows
  const bool shows = config.run.tensorboard == config::Switch::kOn && counts_classes(plan_) &&
                     io::holds_pictures(setup_.test_data->info());
  last_step_ = step;
  std::optional<EvaluationResult> result;
  try {
    result = evaluate(setup_.context, plan_, rank_, setup_.groups, executor_, *setup_.test_data,
                      {.answers = shows ? &answers : nullptr, .polls = &polls});
  } catch (const Error& error) {
    if (failure_of(error).code == ExitCode::kData) {
      note_failed_evaluation(config.run.dir, step);
    }
    throw;
  }
  if (!result) {
    return std::nullopt;
  }
  if (!std::isfinite(result->loss)) {
    throw comm::AgreedError(
        ExitCode::kDiverged,
        fmt::format("the run diverged: after step {} the loss of the test data is {}; the last "
                    "good checkpoint is kept. Lower optimizer.learning_rate",
                    step, result->loss));
  }
  const EvaluateRecord record = evaluate_record(plan_, step, *result);
  write_text_sample(step, polls);
  if (metrics_ != nullptr) {
    if (!answers.empty()) {
      metrics_->write_event(
          step, value_of("evaluate/samples", io::answers_sheet(*setup_.test_data, answers)));
    }
    metrics_->write(record);
  }
  if (history_) {
    history_->add(record);
  }
  const StepRequests judged = judgement(step);
  setup_.log.info("step {}: test {}{}", step, text_of(plan_, *result),
                  judged.has(StepRequest::kSave) ? "; the best so far" : "");
  return judged;
}

void PeriodicEvaluation::write_text_sample(std::int64_t step, StopPolls& polls) {
  constexpr std::int64_t kPrompt = 16;
  const auto& run = plan_.config.run;
  if (run.tensorboard_text == 0) {
    return;
  }
  const std::int64_t half = std::max<std::int64_t>(1, plan_.model->input_shape()[0] / 2);
  std::vector<std::int64_t> text(static_cast<std::size_t>(std::min(kPrompt, half)));
  comm::agree(*setup_.groups.world, [&] {
    if (metrics_ != nullptr) {
      setup_.test_data->read_tokens(0, text);
    }
  });
  setup_.groups.world->broadcast(comm::payload_of(std::span(text)), 0);
  const std::vector<std::int64_t> sampled = sampled_text(
      setup_.context, plan_, rank_, setup_.groups, executor_, text, run.tensorboard_text,
      {.seed = run.seed}, [&] { return polls.poll() == StopRequest::kStop; });
  if (metrics_ != nullptr) {
    metrics_->write_event(
        step,
        value_of("evaluate/text", tokenizer_->decode(text, io::Continues::kNo) + "\n=>\n" +
                                      tokenizer_->decode(sampled, io::Continues::kYes) + "\n"));
  }
}

bool PeriodicEvaluation::is_left(std::int64_t step) {
  if (setup_.checkpoint == nullptr || setup_.test_data == nullptr) {
    return false;
  }
  const auto left = comm::agree_on_first(
      *setup_.groups.world, [&] { return evaluation_left(plan_.config.run.dir, step); });
  if (left == EvaluationLeft::kFailed) {
    setup_.log.warn(
        "the evaluation after step {} failed in an earlier run and is left out; check data.test: "
        "strata data inspect {} --verify",
        step, plan_.config.data.test);
  }
  return left == EvaluationLeft::kDue;
}

bool PeriodicEvaluation::decides() const {
  return plan_.config.checkpoint.best != config::Best::kOff || plan_.config.train.patience > 0;
}

StepRequests PeriodicEvaluation::judgement(std::int64_t step) {
  StepRequests word;
  if (!decides()) {
    return word;
  }
  if (history_ && best_step(step) == step) {
    word.add(StepRequest::kSave);
  }
  const std::int64_t patience = plan_.config.train.patience;
  if (history_ && patience > 0 && history_->since_best() >= patience) {
    word.add(StepRequest::kStop);
  }
  return comm::broadcast_from(*setup_.groups.world, word);
}

std::int64_t PeriodicEvaluation::best_step(std::int64_t step) const {
  if (!history_ || plan_.config.checkpoint.best == config::Best::kOff) {
    return -1;
  }
  std::optional<EvaluateRecord> best;
  try {
    std::vector<io::CheckpointEntry> entries = io::list_checkpoints(checkpoint_root(plan_.config));
    entries.push_back({.step = step, .directory = {}});
    best = history_->best_of(entries);
  } catch (const Error&) {
    best = history_->best();  // the directory cannot be listed now
  }
  return best ? best->step : -1;
}

void PeriodicEvaluation::log_patience(std::int64_t step) const {
  if (history_) {
    const std::string text = fmt::format(
        "finished after step {} of {}: {} did not improve in the last {} evaluations "
        "(train.patience = {}); the best was {}",
        step, plan_.total_steps, history_->watched_name(), history_->since_best(),
        plan_.config.train.patience, history_->best_text());
    setup_.log.info("{}", text);
    metrics_->write(RunEvent::kFinished, {{"finished", text}});
  }
}

}  // namespace strata::train
