#include "strata/train/trainer.hpp"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/memory.hpp"
#include "strata/io/text_file.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/config_changes.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/references.hpp"
#include "strata/train/step_summary.hpp"
#include "strata/train/stop_signal.hpp"

#include "loop/kernels_used.hpp"
#include "loop/resource_usage.hpp"
#include "loop/saves.hpp"
#include "loop/sniff_tests.hpp"
#include "loop/step_receipts.hpp"
#include "loop/step_report.hpp"
#include "loop/timeline_recorder.hpp"
#include "record/stragglers.hpp"

namespace strata::train {
namespace {

/// The state of one call of train() on one rank.
class Trainer final : public TrainingLoop {
 public:
  using OnFailure = Saves::OnFailure;

  explicit Trainer(const TrainerSetup& setup)
      : setup_(setup),
        plan_(setup.plan),
        config_(setup.plan.config),
        rank_(rank_plan(setup.plan, setup.groups.world->rank())),
        state_(setup.context, setup.plan, rank_, setup.groups),
        executor_(state_.chunks(), setup.groups.along(grid::Axis::kPipeline), *setup.groups.engine),
        replication_(make_replication(setup, rank_, state_, executor_)),
        evaluation_(setup, rank_, executor_),
        saves_(setup, rank_, state_, *replication_, evaluation_, clock_),
        stragglers_(setup.groups),
        timeline_(setup, rank_, executor_) {
    if (const auto traits = plan::replication_of(plan_).traits(plan_); !traits.reproducible()) {
      setup.log.info("{}", traits.irreproducible);
    }
    executor_.set_observer(setup.hooks.action);
  }

  Outcome run() {
    begin();
    if (setup_.groups.world->rank() == 0) {
      clock_.emplace(
          RunClock::Options{.began = now_seconds(),
                            .save_interval_seconds = 60.0 * config_.checkpoint.minutes,
                            .ends = setup_.ends,
                            .assumed_save_seconds = assumed_save_seconds(checkpoint_bytes(plan_))});
    }
    sniff_tests_.start(first_step_);
    Outcome outcome = find_references();
    if (outcome == Outcome::kStopped) {
      return outcome;
    }
    if (first_step_ < plan_.total_steps && due(first_step_).has(StepRequest::kEvaluate) &&
        evaluation_.is_left(first_step_)) {
      outcome = evaluate(first_step_);
    }
    if (setup_.checkpoint != nullptr && first_step_ < plan_.total_steps) {
      patience_is_over_ = evaluation_.judgement(first_step_).has(StepRequest::kStop);
    }
    if (outcome == Outcome::kFinished && patience_is_over_) {
      evaluation_.log_patience(first_step_);
    } else if (outcome == Outcome::kFinished && first_step_ < plan_.total_steps) {
      outcome = train_steps();
    } else if (outcome == Outcome::kFinished) {
      setup_.log.info("nothing to train: step {} of {} is done already", first_step_,
                      plan_.total_steps);
    }
    replication_->stop();  // bad test data must not leave parameter servers open
    const std::int64_t end = std::max(first_step_, plan_.total_steps);
    if (outcome == Outcome::kFinished && !patience_is_over_ && evaluation_.last_step() != end) {
      outcome = evaluate(end);
    }
    if (report_) {
      report_->warn_of_lost_lines(patience_is_over_ ? evaluation_.last_step() : end);
    }
    sniff_tests_.log_cost();
    timeline_.finish();
    const ResourceUsage peak =
        log_resource_usage(setup_, {.base_bytes = base_bytes_,
                                    .planned_bytes = plan::host_bytes(plan_, rank_),
                                    .graphs = graphs()});
    if (metrics_) {
      metrics_->write(RunEvent::kMemory, {{"peak_bytes", peak.resident_bytes},
                                          {"mapped_bytes", peak.mapped_bytes},
                                          {"base_bytes", peak.base_bytes}});
    }
    return outcome;
  }

  ~Trainer() { setup_.log.on_warning({}); }

  /// Writes the metrics of steps that no line has yet.
  void flush_report() {
    if (report_) {
      report_->flush();
    }
  }

  /// After an agreed failure of run(). Communication: collective over the world.
  void finish_save() { saves_.finish_after_failure(); }

 private:
  void begin() {
    const FileTimeout timeout(*setup_.groups.world);
    comm::agree(*setup_.groups.world, [&] {
      if (setup_.checkpoint != nullptr) {
        require_continues(plan_, *setup_.checkpoint);
        first_step_ = setup_.checkpoint->step();
      } else {
        state_.initialise();
        if (setup_.initial != nullptr) {
          require_initial(plan_, *setup_.initial);
          state_.load_weights(*setup_.initial, initialized_anew(plan_, *setup_.initial));
        }
      }
      const bool has_states = setup_.checkpoint != nullptr && has_state(plan_, *setup_.checkpoint);
      if (setup_.checkpoint != nullptr && !has_states) {
        state_.load_weights(*setup_.checkpoint);  // optimizer states are zero, as in a new run
      }
      replication_->load(has_states ? setup_.checkpoint : nullptr);
      end_setup_on_stop_request();
      if (setup_.groups.world->rank() == 0 && !receipts_.is_replay()) {
        open_files();
      }
      saves_.open(metrics_ ? &*metrics_ : nullptr, tokenizer_ ? &*tokenizer_ : nullptr);
    });
    first_step_ = replication_->start(first_step_);
    receipts_.open(first_step_);
    if (metrics_) {
      metrics_->write(RunEvent::kStart, setup_.facts);
      setup_.log.on_warning([this](const std::string& text) {
        metrics_->write(RunEvent::kWarning, {{"text", text}});
      });
    }
    if (setup_.checkpoint != nullptr) {
      setup_.log.info("continuing after step {} from {}", first_step_,
                      setup_.checkpoint->directory().string());
      const auto before = setup_.checkpoint->metadata().value("config", nlohmann::json());
      for (const std::string& change : config_changes(
               before.is_string() ? before.get<std::string>() : "", setup_.config_text)) {
        setup_.log.info("{}, from step {} on", change, first_step_ + 1);
      }
      if (plan_.former) {
        setup_.log.warn("from step {} on the numbers are those of {}, no longer of {}",
                        first_step_ + 1, plan::virtual_grid_text(plan::virtual_grid_of(plan_)),
                        plan::virtual_grid_text(*plan_.former));
      }
      tidy_checkpoints(plan_, *setup_.groups.world, first_step_, evaluation_.best_step(first_step_),
                       setup_.log);
    } else if (setup_.initial != nullptr) {
      setup_.log.info("{}", initial_text(plan_, *setup_.initial));
    }
    if (config_.run.cuda_graphs == config::Switch::kOn &&
        plan_.device == device::DeviceKind::kCuda) {
      for (nn::Stage* const chunk : state_.chunks()) {
        require(chunk->record_passes(), "passes that contain messages cannot be recorded");
      }
    }
  }

  /// What the loss compares answers with: of the initial weights, or as a run that goes on stored
  /// it.
  Outcome find_references() {
    if (!compares_documents(plan_)) {
      return Outcome::kFinished;
    }
    setup_.groups.world->enter(comm::Phase::kEvaluation);
    StopPolls polls(*setup_.groups.world, [this] { return stop_request(); });
    std::vector<io::Dataset*> sets{&setup_.train_data};
    if (setup_.test_data != nullptr) {
      sets.push_back(setup_.test_data);
    }
    for (io::Dataset* const data : sets) {
      if (setup_.checkpoint != nullptr) {
        load_references(plan_, *setup_.groups.world, *data);
        continue;
      }
      if (make_references(setup_.context, plan_, rank_, setup_.groups, executor_, *data, polls,
                          setup_.log) == StopRequest::kStop) {
        const std::string text =
            "stopped on request while the reference was computed, before a step was trained; "
            "submit the job again, which computes it anew, with more time if it was the time limit";
        setup_.log.info("{}", text);
        if (metrics_) {
          metrics_->write(RunEvent::kStopped, {{"stopped", text}});
        }
        return Outcome::kStopped;
      }
    }
    return Outcome::kFinished;
  }

  /// On rank 0.
  void open_files() {
    const std::filesystem::path dir(config_.run.dir);
    if (plan_.train_data.tokenizer != io::TokenizerKind::kNone) {
      tokenizer_.emplace(io::Tokenizer::of(plan_.train_data));
    }
    if (compares_documents(plan_) && setup_.checkpoint == nullptr &&
        std::filesystem::exists(dir / "config.ini")) {
      setup_.log.info(
          "{} holds a run that ended before its first checkpoint: it starts anew, and so "
          "does its reference",
          config_.run.dir);
    }
    io::replace_text(dir / "config.ini", setup_.config_text);
    // Where all steps are done already, the final evaluation is repeated.
    const bool evaluates_again = first_step_ >= plan_.total_steps && setup_.test_data != nullptr;
    metrics_.emplace(dir / "metrics.jsonl",
                     MetricsKept{.training_step = first_step_,
                                 .evaluation_step = first_step_ - (evaluates_again ? 1 : 0)},
                     config_.run.tensorboard == config::Switch::kOn
                         ? std::optional(EventsWanted{.directory = dir / "tensorboard",
                                                      .config_text = setup_.config_text,
                                                      .model = plan_.model.get()})
                         : std::nullopt);
    if (!plan::may_skip_steps(plan_) && !metrics_->missing_steps().empty()) {
      setup_.log.warn(
          "{} has no lines of the training steps {}, and the run goes on without them{}; "
          "restore the file from a copy to have them",
          (dir / "metrics.jsonl").string(), metrics_->missing_steps(),
          evaluation_.decides() ? ", so that checkpoint.best and train.patience may not count all "
                                  "evaluations"
                                : "");
    }
    evaluation_.open(*metrics_, tokenizer_ ? &*tokenizer_ : nullptr);
  }

  /// Cached CUDA graphs.
  [[nodiscard]] std::int64_t graphs() {
    std::int64_t graphs = 0;
    for (const nn::Stage* const chunk : state_.chunks()) {
      graphs += chunk->graphs();
    }
    return graphs;
  }

  Outcome train_steps() {
    setup_.groups.world->enter(comm::Phase::kTraining);
    discard_waits();
    if (metrics_) {
      report_.emplace(setup_, *metrics_, first_step_);
    }
    bool last = false;
    while (!last && !patience_is_over_) {
      const AgreedPoint point = replication_->advance(*this);
      const std::int64_t step = point.step;
      updates_ = point.updates;
      report_steps(point);
      if (!point.stopped.empty()) {
        return stopped(step, point.stopped);
      }
      if (step >= setup_.last_step) {
        receipts_.end_replay(step);
        return Outcome::kStopped;
      }
      sniff_tests_.after(step);
      last = point.ends;
      const bool stop = point.requests.has(StepRequest::kStop) && !last;
      if (stop && receipts_.is_replay()) {
        state_.drain();
        return Outcome::kStopped;
      }
      const double save_began = now_seconds();
      if (last || stop || point.requests.has(StepRequest::kSave)) {
        flush_report();  // a run that continues from here misses none
        saves_.save(step, updates_, last || stop ? OnFailure::kThrow : OnFailure::kWarn);
      } else if (!point.requests.has(StepRequest::kWait)) {
        saves_.advance();
      }
      saves_.report();
      if (report_) {
        report_->add_save(now_seconds() - save_began);
      }
      if (stop) {
        return stopped(step, "checkpoint written");
      }
      // After the save: bad test data must not end the run at the same step again and again.
      if (!last && point.requests.has(StepRequest::kEvaluate) &&
          evaluate(step) == Outcome::kStopped) {
        return Outcome::kStopped;
      }
      if (patience_is_over_) {
        saves_.save(step, updates_, OnFailure::kThrow);
        saves_.finish();
        evaluation_.log_patience(step);
      }
    }
    return Outcome::kFinished;
  }

  void report_steps(const AgreedPoint& point) {
    std::optional<RankTimes> ranks;
    if (!point.results.empty() && point.requests.has(StepRequest::kTimes)) {
      ranks = stragglers_.end_window(setup_.log);
    }
    for (const StepResult& result : point.results) {
      receipts_.write(result);
      if (report_) {
        report_->add(result, &result == &point.results.back() ? ranks : std::nullopt);
      }
      if (result.step == first_step_ + 1 && plan_.device == device::DeviceKind::kCuda) {
        // Before anything of this step is saved.
        const ComparedKernels kernels =
            compared_kernels(*setup_.groups.world, setup_.context.kernels());
        setup_.log.info("{}", kernels.text);
        if (!kernels.warning.empty() && plan_.config.numerics.mode == comm::Summation::kInvariant) {
          setup_.log.warn("{}", kernels.warning);
        }
      }
    }
  }

  /// `how`: what it left. `where`: as in " in a test".
  Outcome stopped(std::int64_t step, const std::string& how, const char* where = "") {
    flush_report();
    const std::string text =
        fmt::format("stopped {}{} after step {} of {}, {}; continue with --run.resume=auto",
                    stop_reason(), where, step, plan_.total_steps, how);
    setup_.log.info("{}", text);
    if (metrics_) {
      metrics_->write(RunEvent::kStopped, {{"stopped", text}});
    }
    return Outcome::kStopped;
  }

  [[nodiscard]] StepRequests requests(std::int64_t step) override {
    StepRequests mine;
    if (report_ && report_->is_log_step(step)) {
      mine.add(StepRequest::kTimes);
    }
    if (stop_request() == StopRequest::kStop) {
      mine.add(StepRequest::kStop);
    }
    if (clock_ && clock_->save_due(now_seconds())) {
      mine.add(StepRequest::kSave);
    }
    if (saves_.is_writing()) {
      mine.add(StepRequest::kWait);
    }
    return mine;
  }

  [[nodiscard]] StopRequest stop_request() override {
    return clock_ && clock_->stop_due(now_seconds()) ? StopRequest::kStop : setup_.stop_request();
  }

  [[nodiscard]] StepRequests due(std::int64_t step) const override {
    StepRequests due;
    const auto add = [&](std::int64_t every, StepRequest request) {
      if (every > 0 && step % every == 0) {
        due.add(request);
      }
    };
    add(config_.checkpoint.every, StepRequest::kSave);
    add(config_.checkpoint.keep_every, StepRequest::kSave);
    add(config_.train.evaluate_every, StepRequest::kEvaluate);
    return due;
  }

  void begin_step(std::int64_t step) override {
    if (comm::Activity* const activity = setup_.groups.world->activity()) {
      activity->set_step(step);
    }
    timeline_.begin_step(step);
    step_began_ = now_seconds();
  }

  void end_step(const StepResult& result) override {
    timeline_.end_step(result.step, step_began_, result.times);
    if (clock_) {
      clock_->step_done(result.times.step);
    }
    stragglers_.add_step(result.times.compute);
  }

  void report(const StepResult& result) override {
    clock_->step_done(result.times.step);
    report_->add(result);
  }

  /// Why the run stops, on rank 0. Warns where the time limit leaves no room to train.
  [[nodiscard]] std::string stop_reason() const {
    const std::string warning = clock_ ? clock_->time_limit_warning() : "";
    if (!warning.empty()) {
      setup_.log.warn("{}", warning);
    }
    return clock_ && clock_->time_is_over() ? "ahead of the time limit" : "on request";
  }

  /// Stalls outside steps do not count.
  void discard_waits() { static_cast<void>(setup_.groups.engine->take_device_waits()); }

  Outcome evaluate(std::int64_t step) {
    if (setup_.test_data == nullptr) {
      return Outcome::kFinished;
    }
    flush_report();
    // Bad test data may end the run.
    state_.drain();
    saves_.finish();
    const PhaseMark phase(*setup_.groups.world, comm::Phase::kEvaluation);
    replication_->load_evaluation_weights();
    const std::optional<StepRequests> judged =
        evaluation_.run(step, [this] { return stop_request(); });
    discard_waits();
    if (!judged) {
      saves_.save(step, updates_, OnFailure::kThrow);
      return stopped(step, "checkpoint written", " in the evaluation");
    }
    patience_is_over_ = judged->has(StepRequest::kStop) && step < plan_.total_steps;
    if (judged->has(StepRequest::kSave)) {
      if (saves_.has(step)) {
        saves_.keep(step);
      } else {
        saves_.save(step, updates_, OnFailure::kWarn);
      }
    }
    return Outcome::kFinished;
  }

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  const config::RunConfig& config_;
  plan::RankPlan rank_;
  std::int64_t base_bytes_ = private_bytes();
  RankState state_;
  pipeline::Executor executor_;
  std::unique_ptr<Replication> replication_;
  std::optional<MetricsFile> metrics_;  ///< on rank 0
  /// On rank 0, for its checkpoints: the data set may have been deleted by then.
  std::optional<io::Tokenizer> tokenizer_;
  PeriodicEvaluation evaluation_;
  std::optional<RunClock> clock_;  ///< on rank 0
  Saves saves_;
  StepReceipts receipts_{setup_, state_, saves_};
  SniffTests sniff_tests_{setup_, state_};
  Stragglers stragglers_;
  double step_began_ = 0.0;
  TimelineRecorder timeline_;
  std::optional<StepReport> report_;  ///< on rank 0, while it trains
  std::int64_t first_step_ = 0;
  std::int64_t updates_ = 0;  ///< AgreedPoint::updates
  bool patience_is_over_ = false;
};

}  // namespace

Outcome train(const TrainerSetup& setup) {
  if (setup.hooks.begin) {
    setup.hooks.begin(setup.plan, setup.groups);
  }
  std::optional<Trainer> trainer;
  comm::agree(*setup.groups.world, [&] { trainer.emplace(setup); });
  try {
    return trainer->run();
  } catch (const std::exception& error) {
    trainer->flush_report();
    if (setup.on_failure) {
      setup.on_failure(error);
    }
    const auto* const agreed = dynamic_cast<const comm::AgreedError*>(&error);
    if (agreed != nullptr && agreed->code() == ExitCode::kDiverged) {
      trainer->finish_save();
    }
    throw;
  }
}

}  // namespace strata::train
