#include "strata/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/io/text_file.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/checkpoint_writer.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/metrics.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/step_summary.hpp"
#include "strata/train/step_times.hpp"
#include "strata/train/stop_signal.hpp"
#include "strata/train/timeline.hpp"

#include "evaluation_record.hpp"
#include "run_clock.hpp"
#include "sample_feed.hpp"
#include "step_report.hpp"

namespace strata::train {
namespace {

/// What a save takes before one was measured: that of a slow shared file system.
double assumed_save_seconds(std::int64_t bytes) {
  constexpr double kLatencySeconds = 3.0;
  constexpr double kBytesPerSecond = 200e6;
  return kLatencySeconds + static_cast<double>(bytes) / kBytesPerSecond;
}

/// The state of one call of train() on one rank.
class Trainer {
 public:
  using OnFailure = CheckpointWriter::OnFailure;

  explicit Trainer(const TrainerSetup& setup)
      : setup_(setup),
        plan_(setup.plan),
        config_(setup.plan.config),
        rank_(rank_plan(setup.plan, setup.groups.world->rank())),
        state_(setup.context, setup.plan, rank_, setup.groups),
        executor_(state_.stage(), *setup.groups.pipeline, *setup.groups.engine) {}

  FinishedRun run() {
    begin();
    if (setup_.groups.world->rank() == 0) {
      clock_.emplace(
          RunClock::Options{.began = now_seconds(),
                            .save_interval_seconds = 60.0 * config_.checkpoint.minutes,
                            .ends = setup_.ends,
                            .assumed_save_seconds = assumed_save_seconds(checkpoint_bytes(plan_))});
    }
    Outcome outcome = evaluate_again();
    if (outcome == Outcome::kFinished && first_step_ < plan_.total_steps) {
      outcome = train_steps();
    } else if (outcome == Outcome::kFinished) {
      setup_.log.info("nothing to train: step {} of {} is done already", first_step_,
                      plan_.total_steps);
    }
    const std::int64_t end = std::max(first_step_, plan_.total_steps);
    if (outcome == Outcome::kFinished && evaluated_step_ != end) {
      outcome = evaluate(end);
    }
    if (config_.run.timeline == plan::Switch::kOn) {
      timeline_.write(*setup_.groups.world,
                      std::filesystem::path(config_.run.dir) / "timeline.json");
    }
    return {.outcome = outcome, .graphs = state_.stage().graphs()};
  }

 private:
  void begin() {
    comm::agree(*setup_.groups.world, [&] {
      if (setup_.checkpoint != nullptr) {
        require_continues(plan_, *setup_.checkpoint);
        state_.load(*setup_.checkpoint);
        first_step_ = setup_.checkpoint->step();
      }
      end_setup_on_stop_request();
      if (setup_.groups.world->rank() == 0) {
        if (plan_.train_data.tokenizer != io::TokenizerKind::kNone) {
          tokenizer_.emplace(io::Tokenizer::of(plan_.train_data));
        }
        const std::filesystem::path dir(config_.run.dir);
        io::replace_text(dir / "config.ini", setup_.config_text);
        // Where all steps are done already, the final evaluation is repeated.
        const bool evaluates_again =
            first_step_ >= plan_.total_steps && setup_.test_data != nullptr;
        metrics_.emplace(
            dir / "metrics.jsonl",
            MetricsKept{.training_step = first_step_,
                        .evaluation_step = evaluates_again ? first_step_ - 1 : first_step_});
      }
    });
    comm::agree(*setup_.groups.world, [&] {
      writer_.emplace(plan_, rank_, setup_.groups, state_,
                      RunRecord{.config_text = setup_.config_text,
                                .tokenizer = tokenizer_ ? &*tokenizer_ : nullptr,
                                .lock = setup_.lock},
                      setup_.log);
    });
    saved_step_ = setup_.checkpoint != nullptr ? first_step_ : -1;
    if (setup_.checkpoint != nullptr) {
      setup_.log.info("continuing after step {} from {}", first_step_,
                      setup_.checkpoint->directory().string());
      tidy_checkpoints(plan_, *setup_.groups.world, first_step_, setup_.log);
    }
    if (config_.run.cuda_graphs == plan::Switch::kOn && plan_.device == device::DeviceKind::kCuda) {
      require(state_.stage().record_passes(), "passes that contain messages cannot be recorded");
    }
    if (config_.run.timeline == plan::Switch::kOn) {
      executor_.set_observer([this](const pipeline::Action& action, double from, double to) {
        const std::string lanes = plan_.concurrent_lanes > 1
                                      ? fmt::format(" of each of {} lanes", plan_.concurrent_lanes)
                                      : "";
        timeline_.add(pipeline::text_of(action) + lanes, from, to);
      });
    }
  }

  Outcome train_steps() {
    feed_.emplace(setup_.context, setup_.train_data, rank_,
                  training_loader(plan_, rank_, first_step_));
    discard_waits();
    if (metrics_) {
      report_.emplace(setup_, *metrics_, first_step_);
    }
    for (std::int64_t step = first_step_ + 1; step <= plan_.total_steps; ++step) {
      const StepSummary summary = train_step(step);
      const bool last = step == plan_.total_steps;
      const bool stop = summary.requests.has(StepRequest::kStop) && !last;
      if (last || stop || summary.requests.has(StepRequest::kSave) || is_save_step(step)) {
        save(step, last || stop ? OnFailure::kThrow : OnFailure::kWarn);
      } else if (writer_->is_saving() && !summary.requests.has(StepRequest::kWait)) {
        writer_->advance();
      }
      report_save();
      if (stop) {
        setup_.log.info(
            "stopped {} after step {} of {}, checkpoint written; continue with --run.resume=auto",
            stop_reason(), step, plan_.total_steps);
        return Outcome::kStopped;
      }
      // After the save: bad test data must not end the run at the same step again and again.
      if (is_evaluation_step(step) && evaluate(step) == Outcome::kStopped) {
        return Outcome::kStopped;
      }
    }
    return Outcome::kFinished;
  }

  /// What this rank asks of all ranks.
  [[nodiscard]] StepRequests requests() {
    StepRequests mine;
    if (own_stop_request() == StopRequest::kStop) {
      mine.add(StepRequest::kStop);
    }
    if (writer_->is_writing()) {
      mine.add(StepRequest::kWait);
    }
    if (clock_ && clock_->save_due(now_seconds())) {
      mine.add(StepRequest::kSave);
    }
    return mine;
  }

  [[nodiscard]] StopRequest own_stop_request() {
    time_is_over_ = time_is_over_ || (clock_ && clock_->stop_due(now_seconds()));
    return time_is_over_ ? StopRequest::kStop : stop_request();
  }

  /// Why the run stops. Warns where the time limit leaves no room to train.
  [[nodiscard]] std::string stop_reason() const {
    if (!time_is_over_) {
      return "on request";
    }
    if (clock_->steps() <= 1) {
      setup_.log.warn(
          "the time limit is over after {} step{}: a step takes {}, and a checkpoint {}. Give the "
          "job more time (sbatch --time, run.time_limit), or more ranks",
          clock_->steps(), clock_->steps() == 1 ? "" : "s", duration_text(clock_->step_seconds()),
          duration_text(clock_->save_seconds()));
    }
    return "ahead of the time limit";
  }

  [[nodiscard]] bool is_save_step(std::int64_t step) const {
    const auto hits = [&](std::int64_t every) { return every > 0 && step % every == 0; };
    return hits(config_.checkpoint.every) || hits(config_.checkpoint.keep_every);
  }

  /// Stalls outside steps do not count.
  void discard_waits() { static_cast<void>(setup_.groups.engine->take_device_waits()); }

  StepSummary train_step(std::int64_t step) {
    StepTimes times;
    const double begin = now_seconds();
    feed_->next();
    times.data = now_seconds() - begin;

    const std::int64_t first_sample = (step - 1) * config_.batch.global;
    BatchSource source(plan_, rank_, *feed_, first_sample, first_sample + config_.batch.global);
    state_.reset_clock();
    const pipeline::ExecutionTimes execution =
        executor_.train(plan_.training, source,
                        1.0 / static_cast<double>(config_.batch.global * plan_.targets_per_sample),
                        state_.reducer());
    feed_->prefetch();
    times.bubble = execution.pipeline_wait;
    times.communication = state_.exposed_seconds();
    times.compute = execution.compute - times.communication;

    const double reduced = now_seconds();
    const double tied = state_.combine_tied();
    const StepSummary summary = summarize_step(plan_, rank_, setup_.groups, state_, requests());
    const double exchanged = tied + summary.communication_seconds;
    times.communication += exchanged;
    times.compute += now_seconds() - reduced - exchanged;
    // On a GPU the host counted these stalls as compute. They include the stalls of the last
    // update, for which the host did not wait.
    count_device_waits(times, setup_.groups.engine->take_device_waits());
    if (!std::isfinite(summary.loss) || !std::isfinite(summary.grad_norm)) {
      throw comm::AgreedError(ExitCode::kDiverged,
                              fmt::format("the run diverged: at step {} the loss is {} and the "
                                          "gradient norm {}; the last good checkpoint "
                                          "is kept. Lower optimizer.learning_rate, set "
                                          "optimizer.clip_norm or lengthen schedule.warmup_steps",
                                          step, summary.loss, summary.grad_norm));
    }

    const double rate = optim::learning_rate(config_.schedule, step);
    const double updating = now_seconds();
    const double waited = state_.update(rate, clip_scale(summary.grad_norm), step);
    times.communication += waited;
    const double end = now_seconds();
    times.compute += end - updating - waited;
    times.step = end - begin;
    if (clock_) {
      clock_->step_done(times.step);
    }
    if (report_) {
      report_->add(step, summary, rate, times);
    }
    return summary;
  }

  [[nodiscard]] double clip_scale(double norm) const {
    const double limit = config_.optimizer.clip_norm;
    return limit > 0.0 && norm > limit ? limit / norm : 1.0;
  }

  Outcome evaluate(std::int64_t step) {
    if (setup_.test_data == nullptr) {
      return Outcome::kFinished;
    }
    // Bad test data may end the run.
    writer_->finish();
    report_save();
    StopPolls polls(*setup_.groups.world, [this] { return own_stop_request(); });
    const std::optional<EvaluationResult> result = evaluated(step, polls);
    evaluated_step_ = step;
    discard_waits();
    if (!result) {
      save(step, OnFailure::kThrow);
      setup_.log.info(
          "stopped {} in the evaluation after step {} of {}, checkpoint written; continue with "
          "--run.resume=auto",
          stop_reason(), step, plan_.total_steps);
      return Outcome::kStopped;
    }
    if (!std::isfinite(result->loss)) {
      throw comm::AgreedError(
          ExitCode::kDiverged,
          fmt::format("the run diverged: after step {} the loss of the test data is {}; the last "
                      "good checkpoint is kept. Lower optimizer.learning_rate",
                      step, result->loss));
    }
    const bool classes = plan_.model->loss() == nn::LossKind::kCrossEntropy;
    if (metrics_) {
      metrics_->write(EvaluateRecord{
          .step = step,
          .loss = result->loss,
          .accuracy = classes ? std::optional(result->accuracy) : std::nullopt,
          .perplexity =
              is_language_model(plan_) ? std::optional(std::exp(result->loss)) : std::nullopt});
    }
    setup_.log.info("step {}: test {}", step, text_of(plan_, *result));
    return Outcome::kFinished;
  }

  std::optional<EvaluationResult> evaluated(std::int64_t step, StopPolls& polls) {
    try {
      return train::evaluate(setup_.context, plan_, rank_, setup_.groups, executor_,
                             *setup_.test_data, nullptr, &polls);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kData) {
        note_failed_evaluation(config_.run.dir, step);
      }
      throw;
    }
  }

  [[nodiscard]] bool is_evaluation_step(std::int64_t step) const {
    return config_.train.evaluate_every > 0 && step % config_.train.evaluate_every == 0;
  }

  /// The evaluation of the step that the run continues after, where the run before did not come to
  /// its end.
  Outcome evaluate_again() {
    if (setup_.checkpoint == nullptr || setup_.test_data == nullptr ||
        !is_evaluation_step(first_step_) || first_step_ >= plan_.total_steps) {
      return Outcome::kFinished;
    }
    auto left = EvaluationLeft::kNone;
    if (setup_.groups.world->rank() == 0) {
      left = evaluation_left(config_.run.dir, first_step_);
    }
    setup_.groups.world->broadcast(comm::payload_of(std::span(&left, 1)), 0);
    if (left == EvaluationLeft::kFailed) {
      setup_.log.warn(
          "the evaluation after step {} failed in an earlier run and is left out; check data.test: "
          "strata data inspect {} --verify",
          first_step_, config_.data.test);
    }
    return left == EvaluationLeft::kDue ? evaluate(first_step_) : Outcome::kFinished;
  }

  /// Writes what the last committed checkpoint cost.
  void report_save() {
    const std::optional<CheckpointRecord> report = writer_->take_report();
    if (report && metrics_ && clock_) {
      metrics_->write(*report);
      clock_->save_took(report->blocked_seconds + report->write_seconds);
    }
  }

  void save(std::int64_t step, OnFailure on_failure) {
    if (saved_step_ == step) {
      return;
    }
    setup_.groups.engine->drain();
    if (metrics_) {
      metrics_->sync();
    }
    comm::agree(*setup_.groups.world, [&] { state_.require_finite(); });
    writer_->begin(step, on_failure);
    if (on_failure == OnFailure::kThrow || config_.checkpoint.background == plan::Switch::kOff) {
      writer_->finish();
    }
    saved_step_ = step;
    if (clock_) {
      clock_->saved(now_seconds());
    }
    discard_waits();
  }

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  const plan::RunConfig& config_;
  plan::RankPlan rank_;
  RankState state_;
  pipeline::Executor executor_;
  std::optional<SampleFeed> feed_;
  std::optional<MetricsFile> metrics_;
  std::optional<RunClock> clock_;  ///< on rank 0
  bool time_is_over_ = false;
  /// On rank 0, for its checkpoints: the data set may have been deleted by then.
  std::optional<io::Tokenizer> tokenizer_;
  std::optional<CheckpointWriter> writer_;
  Timeline timeline_;
  std::optional<StepReport> report_;  ///< on rank 0, while it trains
  std::int64_t first_step_ = 0;
  std::int64_t saved_step_ = -1;
  std::int64_t evaluated_step_ = -1;
};

}  // namespace

FinishedRun train(const TrainerSetup& setup) {
  std::optional<Trainer> trainer;
  comm::agree(*setup.groups.world, [&] { trainer.emplace(setup); });
  return trainer->run();
}

}  // namespace strata::train
