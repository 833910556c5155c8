#include "strata/train/trainer.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/metrics.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/step_summary.hpp"
#include "strata/train/step_times.hpp"
#include "strata/train/stop_signal.hpp"
#include "strata/train/timeline.hpp"

#include "sample_feed.hpp"

namespace strata::train {
namespace {

/// Replaces a file atomically: a killed process leaves the old text or the new one.
void write_atomically(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path fresh = path.string() + ".new";
  std::ofstream out(fresh, std::ios::trunc);
  out << text;
  out.close();
  std::error_code error;
  if (out) {
    std::filesystem::rename(fresh, path, error);
  }
  if (!out || error) {
    fail(ExitCode::kUsage, "cannot write {}: {}; free some space or choose another run.dir",
         path.string(), error ? error.message() : std::strerror(errno));
  }
}

/// Marks a phase within training, for the watchdog.
class PhaseMark {
 public:
  PhaseMark(comm::Communicator& world, comm::Phase phase) : world_(world) { world_.enter(phase); }
  ~PhaseMark() { world_.enter(comm::Phase::kTraining); }
  PhaseMark(const PhaseMark&) = delete;
  PhaseMark& operator=(const PhaseMark&) = delete;

 private:
  comm::Communicator& world_;
};

/// The state of one call of train() on one rank.
class Trainer {
 public:
  explicit Trainer(const TrainerSetup& setup)
      : setup_(setup),
        plan_(setup.plan),
        config_(setup.plan.config),
        rank_(rank_plan(setup.plan, setup.groups.world->rank())),
        state_(setup.context, setup.plan, rank_, setup.groups),
        executor_(state_.stage(), *setup.groups.pipeline, *setup.groups.engine) {}

  FinishedRun run() {
    begin();
    Outcome outcome = Outcome::kFinished;
    if (first_step_ < plan_.total_steps) {
      outcome = train_steps();
    } else {
      setup_.log.info("nothing to train: step {} of {} is done already", first_step_,
                      plan_.total_steps);
    }
    const std::int64_t end = std::max(first_step_, plan_.total_steps);
    if (outcome == Outcome::kFinished && evaluated_step_ != end) {
      evaluate(end);
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
      if (setup_.groups.world->rank() == 0) {
        if (plan_.train_data.tokenizer != io::TokenizerKind::kNone) {
          tokenizer_.emplace(io::Tokenizer::of(plan_.train_data));
        }
        const std::filesystem::path dir(config_.run.dir);
        write_atomically(dir / "config.ini", setup_.config_text);
        // Where all steps are done already, the final evaluation is repeated.
        const bool evaluates_again =
            first_step_ >= plan_.total_steps && setup_.test_data != nullptr;
        metrics_.emplace(
            dir / "metrics.jsonl",
            MetricsKept{.training_step = first_step_,
                        .evaluation_step = evaluates_again ? first_step_ - 1 : first_step_});
      }
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
    setup_.groups.world->enter(comm::Phase::kTraining);
    feed_.emplace(setup_.context, setup_.train_data, rank_,
                  training_loader(plan_, rank_, first_step_));
    discard_waits();
    began_ = now_seconds();
    for (std::int64_t step = first_step_ + 1; step <= plan_.total_steps; ++step) {
      const StepSummary summary = train_step(step);
      const bool last = step == plan_.total_steps;
      if (config_.train.evaluate_every > 0 && step % config_.train.evaluate_every == 0) {
        evaluate(step);
      }
      const bool stop = summary.stop == StopRequest::kStop && !last;
      if (last || stop || (config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0)) {
        save(step);
      }
      if (stop) {
        setup_.log.info(
            "stopped on request after step {} of {}, checkpoint written; continue with "
            "--run.resume=auto",
            step, plan_.total_steps);
        return Outcome::kStopped;
      }
    }
    return Outcome::kFinished;
  }

  /// Stalls outside steps do not count.
  void discard_waits() { static_cast<void>(setup_.groups.engine->take_device_waits()); }

  StepSummary train_step(std::int64_t step) {
    if (comm::Activity* const activity = setup_.groups.world->activity()) {
      activity->set_step(step);
    }
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
    const StepSummary summary = summarize_step(plan_, rank_, setup_.groups, state_, stop_request());
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
    report(step, summary, rate, times);
    return summary;
  }

  [[nodiscard]] double clip_scale(double norm) const {
    const double limit = config_.optimizer.clip_norm;
    return limit > 0.0 && norm > limit ? limit / norm : 1.0;
  }

  void report(std::int64_t step, const StepSummary& summary, double rate, const StepTimes& times) {
    if (!metrics_) {
      return;
    }
    const double samples_per_second = static_cast<double>(config_.batch.global) / times.step;
    const auto tokens = static_cast<double>(plan_.targets_per_sample);
    metrics_->write(TrainRecord{
        .step = step,
        .loss = summary.loss,
        .grad_norm = summary.grad_norm,
        .learning_rate = rate,
        .samples_per_second = samples_per_second,
        .tokens_per_second =
            is_language_model(plan_) ? std::optional(samples_per_second * tokens) : std::nullopt,
        .mfu = mfu_of(times.step),
        .times = times});
    if (metrics_->failed() && !metrics_warned_) {
      metrics_warned_ = true;
      setup_.log.warn(
          "metrics.jsonl cannot be written, so lines from step {} on are missing; check the disk's "
          "free space",
          step);
    }
    window_seconds_ += times.step;
    window_data_seconds_ += times.data;
    ++window_steps_;
    if (!is_log_step(step)) {
      return;
    }
    const auto window = static_cast<double>(window_steps_);
    const double elapsed = now_seconds() - began_;
    const double left = elapsed / static_cast<double>(step - first_step_) *
                        static_cast<double>(plan_.total_steps - step);
    const bool language = is_language_model(plan_);
    const double rate_shown =
        window * static_cast<double>(config_.batch.global) * (language ? tokens : 1.0);
    const std::optional<double> mfu = mfu_of(window_seconds_ / window);
    setup_.log.progress(
        "step {}/{}  loss {:.4f}  {} {}/s{}  data wait {:.1f} %  ETA {}", step, plan_.total_steps,
        summary.loss, count_text(std::llround(rate_shown / window_seconds_)),
        language ? "tokens" : "samples", mfu ? fmt::format("  MFU {:.1f} %", 100.0 * *mfu) : "",
        100.0 * window_data_seconds_ / window_seconds_, duration_text(left));
    window_seconds_ = 0.0;
    window_data_seconds_ = 0.0;
    window_steps_ = 0;
    last_line_ = now_seconds();
  }

  /// Model FLOP/s utilization of a step of `step_seconds`.
  [[nodiscard]] std::optional<double> mfu_of(double step_seconds) const {
    if (setup_.peak_flops == 0.0) {
      return std::nullopt;
    }
    const double flops = plan_.model->training_flops() * static_cast<double>(config_.batch.global);
    return flops / step_seconds / (setup_.peak_flops * static_cast<double>(plan_.grid.ranks()));
  }

  [[nodiscard]] bool is_log_step(std::int64_t step) const {
    if (step == first_step_ + 1 || step == plan_.total_steps) {
      return true;
    }
    constexpr double kSecondsBetweenLines = 2.0;
    return config_.train.log_every > 0 ? step % config_.train.log_every == 0
                                       : now_seconds() - last_line_ >= kSecondsBetweenLines;
  }

  void evaluate(std::int64_t step) {
    if (setup_.test_data == nullptr) {
      return;
    }
    const PhaseMark phase(*setup_.groups.world, comm::Phase::kEvaluation);
    const EvaluationResult result =
        train::evaluate(setup_.context, plan_, rank_, setup_.groups, executor_, *setup_.test_data);
    evaluated_step_ = step;
    discard_waits();
    if (!std::isfinite(result.loss)) {
      throw comm::AgreedError(
          ExitCode::kDiverged,
          fmt::format("the run diverged: after step {} the loss of the test data is {}; the last "
                      "good checkpoint is kept. Lower optimizer.learning_rate",
                      step, result.loss));
    }
    const bool classes = plan_.model->loss() == nn::LossKind::kCrossEntropy;
    if (metrics_) {
      metrics_->write(EvaluateRecord{
          .step = step,
          .loss = result.loss,
          .accuracy = classes ? std::optional(result.accuracy) : std::nullopt,
          .perplexity =
              is_language_model(plan_) ? std::optional(std::exp(result.loss)) : std::nullopt});
    }
    setup_.log.info("step {}: test {}", step, text_of(plan_, result));
  }

  void save(std::int64_t step) {
    if (saved_step_ == step) {
      return;
    }
    const PhaseMark phase(*setup_.groups.world, comm::Phase::kSave);
    setup_.groups.engine->drain();
    comm::agree(*setup_.groups.world, [&] { state_.require_finite(); });
    save_checkpoint(
        plan_, setup_.groups, state_,
        {.config_text = setup_.config_text, .tokenizer = tokenizer_ ? &*tokenizer_ : nullptr}, step,
        setup_.log);
    saved_step_ = step;
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
  /// On rank 0, for its checkpoints: the data set may have been deleted by then.
  std::optional<io::Tokenizer> tokenizer_;
  Timeline timeline_;
  bool metrics_warned_ = false;
  std::int64_t first_step_ = 0;
  std::int64_t saved_step_ = -1;
  std::int64_t evaluated_step_ = -1;
  double began_ = 0.0;
  double last_line_ = 0.0;
  double window_seconds_ = 0.0;
  double window_data_seconds_ = 0.0;
  std::int64_t window_steps_ = 0;
};

}  // namespace

FinishedRun train(const TrainerSetup& setup) {
  std::optional<Trainer> trainer;
  comm::agree(*setup.groups.world, [&] { trainer.emplace(setup); });
  return trainer->run();
}

}  // namespace strata::train
