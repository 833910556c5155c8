#include "strata/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include <nlohmann/json.hpp>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/io/contact_sheet.hpp"
#include "strata/io/text_file.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/checkpoint_writer.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/config_changes.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/evaluation_history.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/metrics.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/step_summary.hpp"
#include "strata/train/step_times.hpp"
#include "strata/train/stop_signal.hpp"
#include "strata/train/timeline.hpp"

#include "loop/kernels_used.hpp"
#include "loop/run_clock.hpp"
#include "loop/step_report.hpp"
#include "loop/step_runner.hpp"
#include "loop/text_sample.hpp"
#include "record/evaluation_record.hpp"
#include "record/event_file.hpp"
#include "record/stragglers.hpp"
#include "replication/async_workers.hpp"
#include "replication/islands.hpp"

namespace strata::train {
namespace {

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
  using OnFailure = CheckpointWriter::OnFailure;

  explicit Trainer(const TrainerSetup& setup)
      : setup_(setup),
        plan_(setup.plan),
        config_(setup.plan.config),
        rank_(rank_plan(setup.plan, setup.groups.world->rank())),
        state_(setup.context, setup.plan, rank_, setup.groups),
        executor_(state_.chunks(), *setup.groups.pipeline, *setup.groups.engine),
        stragglers_(setup.groups) {
    if (is_local(plan_)) {
      islands_.emplace(setup, rank_, state_);
    }
    if (is_async(plan_)) {
      setup.log.info(
          "asynchronous workers: the numbers of this run depend on the speed of its ranks, and a "
          "second run gives others");
      workers_.emplace(setup, rank_, state_, executor_);
    }
    if (plan_.emulated) {
      std::vector<pipeline::ChunkTimes> times;
      for (std::size_t chunk = 0; chunk < rank_.chunks.size(); ++chunk) {
        times.push_back(plan_.emulated->times_of(
            {.stage = rank_.coordinates.pipeline, .chunk = static_cast<std::int64_t>(chunk)}));
      }
      executor_.emulate(std::move(times));
      if (comm::Activity* const activity = setup.groups.world->activity()) {
        // Ranks outnumber the cores, and none computes: all may wait at once.
        constexpr double kSecondsPerRank = 3e-6;
        activity->sleep_until_seconds = std::numeric_limits<double>::infinity();
        activity->sleep_seconds =
            std::max(activity->sleep_seconds,
                     kSecondsPerRank * static_cast<double>(setup.groups.world->size()));
      }
    }
  }

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
    if (setup_.checkpoint != nullptr && first_step_ < plan_.total_steps) {
      patience_is_over_ = judgement(first_step_).has(StepRequest::kStop);
    }
    if (outcome == Outcome::kFinished && patience_is_over_) {
      log_patience(first_step_);
    } else if (outcome == Outcome::kFinished && first_step_ < plan_.total_steps) {
      outcome = workers_ ? train_asynchronously() : train_steps();
    } else if (outcome == Outcome::kFinished) {
      setup_.log.info("nothing to train: step {} of {} is done already", first_step_,
                      plan_.total_steps);
    }
    const std::int64_t end = std::max(first_step_, plan_.total_steps);
    if (outcome == Outcome::kFinished && !patience_is_over_ && evaluated_step_ != end) {
      outcome = evaluate(end);
    }
    if (report_) {
      report_->warn_of_lost_lines(patience_is_over_ ? evaluated_step_ : end);
    }
    if (const std::string checks = runner_ ? runner_->check_text() : ""; !checks.empty()) {
      setup_.log.info("{}", checks);
    }
    if (runner_ && runner_->skipped() > 0) {
      setup_.log.warn("{} of {} steps were skipped, because loss or gradients were not finite",
                      runner_->skipped(), clock_ ? clock_->steps() : 0);
    }
    if (timeline_) {
      write_timeline();
    }
    return {.outcome = outcome, .graphs = graphs()};
  }

  /// Completes the save under way after an agreed failure: its state was good.
  /// Communication: collective over the world.
  void finish_save() {
    try {
      if (writer_) {
        const PhaseMark phase(*setup_.groups.world, comm::Phase::kSave);
        writer_->finish();
        report_save();
      }
    } catch (const comm::AgreedError& error) {
      setup_.log.warn("{}", error.what());
    }
  }

 private:
  void begin() {
    const FileTimeout timeout(*setup_.groups.world);
    comm::agree(*setup_.groups.world, [&] {
      if (setup_.checkpoint != nullptr) {
        require_continues(plan_, *setup_.checkpoint);
        first_step_ = setup_.checkpoint->step();
      } else if (setup_.initial != nullptr) {
        require_initial(plan_, *setup_.initial);
        state_.load_weights(*setup_.initial, initialized_anew(plan_, *setup_.initial));
      }
      if (setup_.checkpoint != nullptr && has_state(plan_, *setup_.checkpoint)) {
        load(*setup_.checkpoint);
      } else {
        // Without optimizer state, which is zero as at the start of a run.
        if (setup_.checkpoint != nullptr) {
          state_.load_weights(*setup_.checkpoint);
        }
        if (islands_) {
          islands_->start();
        }
        if (workers_) {
          workers_->take_weights();
        }
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
                        .evaluation_step = evaluates_again ? first_step_ - 1 : first_step_},
            config_.run.tensorboard == config::Switch::kOn
                ? std::optional(EventsWanted{.directory = dir / "tensorboard",
                                             .config_text = setup_.config_text,
                                             .model = plan_.model.get()})
                : std::nullopt);
        // An island that is a job lacks the steps of rounds that left it out.
        const bool may_lack = islands_ && islands_->are_jobs();
        if (!may_lack && !metrics_->missing_steps().empty()) {
          setup_.log.warn(
              "{} has no lines of the training steps {}, and the run goes on without them{}; "
              "restore the file from a copy to have them",
              (dir / "metrics.jsonl").string(), metrics_->missing_steps(),
              watches() ? ", so that checkpoint.best and train.patience may not count all "
                          "evaluations"
                        : "");
        }
        if (watches()) {
          history_.emplace(dir / "metrics.jsonl", config_.checkpoint.best);
        }
      }
      writer_.emplace(
          plan_, rank_, setup_.groups,
          [this](const device::Buffer& memory) {
            return workers_   ? workers_->snapshot(memory)
                   : islands_ ? islands_->snapshot(memory)
                              : state_.snapshot(memory);
          },
          RunRecord{.config_text = setup_.config_text,
                    .texts = setup_.checkpoint != nullptr ? model_texts(*setup_.checkpoint)
                             : setup_.initial != nullptr  ? initial_texts(plan_, *setup_.initial)
                                                          : ModelTexts(),
                    .tokenizer = tokenizer_ ? &*tokenizer_ : nullptr,
                    .lock = setup_.lock,
                    .units = workers_ ? std::function([this] { return workers_->done(); })
                                      : std::function<UnitsDone()>(),
                    .meeting = islands_ && islands_->are_jobs()
                                   ? std::function([this] { return islands_->meeting(); })
                                   : std::function<std::string()>()},
          setup_.log);
    });
    saved_step_ = setup_.checkpoint != nullptr ? first_step_ : -1;
    if (islands_) {
      first_step_ = islands_->join(first_step_, setup_.checkpoint == nullptr);
    }
    if (setup_.checkpoint != nullptr) {
      setup_.log.info("continuing after step {} from {}", first_step_,
                      setup_.checkpoint->directory().string());
      const auto before = setup_.checkpoint->metadata().value("config", nlohmann::json());
      for (const std::string& change : config_changes(
               before.is_string() ? before.get<std::string>() : "", setup_.config_text)) {
        setup_.log.info("{}, from step {} on", change, first_step_ + 1);
      }
      tidy_checkpoints(plan_, *setup_.groups.world, first_step_, best_step(first_step_),
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

  void load(const io::Checkpoint& checkpoint) {
    if (islands_) {
      islands_->load(checkpoint);
    } else if (workers_) {
      workers_->load(checkpoint);
    } else {
      state_.load_weights(checkpoint);
      state_.load_state(checkpoint);
    }
  }

  /// Cached CUDA graphs.
  [[nodiscard]] std::int64_t graphs() {
    std::int64_t graphs = 0;
    for (const nn::Stage* const chunk : state_.chunks()) {
      graphs += chunk->graphs();
    }
    return graphs;
  }

  /// Records the actions of `step` where it is one of run.timeline.
  void begin_timeline(std::int64_t step) {
    if (!config_.run.timeline || !config_.run.timeline->holds(step) || timeline_written_) {
      return;
    }
    if (!timeline_) {
      timeline_.emplace(rank_.coordinates, plan_.training);
    }
    executor_.set_observer([this, step](const pipeline::Action& action, double from, double to) {
      timeline_->add(step, action, from, to);
    });
  }
  void end_timeline(std::int64_t step, double begin, const StepTimes& times) {
    if (!timeline_) {
      return;
    }
    executor_.set_observer({});
    timeline_->add_step(step, begin, now_seconds(), times);
    if (step < config_.run.timeline->last && timeline_->is_full()) {
      setup_.log.warn(
          "timeline.json ends with step {} of run.timeline = {}-{}: it holds {} actions a rank",
          step, config_.run.timeline->first, config_.run.timeline->last, Timeline::kMostEvents);
      write_timeline();
    } else if (step == config_.run.timeline->last) {
      write_timeline();
    }
  }
  void write_timeline() {
    timeline_->write(*setup_.groups.world,
                     std::filesystem::path(config_.run.dir) / "timeline.json");
    timeline_.reset();
    timeline_written_ = true;
  }

  Outcome train_steps() {
    setup_.groups.world->enter(comm::Phase::kTraining);
    runner_.emplace(setup_, rank_, state_, islands_ ? &*islands_ : nullptr, executor_, first_step_);
    discard_waits();
    if (metrics_) {
      report_.emplace(setup_, *metrics_, first_step_);
    }
    for (std::int64_t step = first_step_ + 1; step <= plan_.total_steps; ++step) {
      const StepRequests asked = train_step(step);
      if (met_.kind == IslandRendezvous::Kind::kStopped) {
        setup_.log.info(
            "stopped {} after step {} of {}, while other islands were waited for; continue with "
            "--run.resume=auto",
            stop_reason(), step, plan_.total_steps);
        return Outcome::kStopped;
      }
      if (step == first_step_ + 1 && plan_.device == device::DeviceKind::kCuda) {
        // Before anything of this step is saved.
        setup_.log.info("{}", compared_kernels(*setup_.groups.world, setup_.context.kernels()));
      }
      if (met_.step > step) {
        step = met_.step;
        if (step < plan_.total_steps) {
          runner_.emplace(setup_, rank_, state_, &*islands_, executor_, step);
        }
      }
      const bool last = step == plan_.total_steps;
      const bool stop = asked.has(StepRequest::kStop) && !last;
      if (last || stop || asked.has(StepRequest::kSave) || is_save_step(step)) {
        save(step, last || stop ? OnFailure::kThrow : OnFailure::kWarn);
      } else if (writer_->is_saving() && !asked.has(StepRequest::kWait)) {
        writer_->advance();
      }
      report_save();
      if (stop) {
        setup_.log.info("stopped {} after step {} of {}, {}", stop_reason(), step,
                        plan_.total_steps,
                        plan_.emulated ? "without a checkpoint"
                                       : "checkpoint written; continue with --run.resume=auto");
        return Outcome::kStopped;
      }
      // After the save: bad test data must not end the run at the same step again and again.
      if (is_evaluation_step(step) && evaluate(step) == Outcome::kStopped) {
        return Outcome::kStopped;
      }
      if (patience_is_over_) {
        save(step, OnFailure::kThrow);
        writer_->finish();
        report_save();
        log_patience(step);
        break;
      }
    }
    return Outcome::kFinished;
  }

  Outcome train_asynchronously() {
    setup_.groups.world->enter(comm::Phase::kTraining);
    if (metrics_) {
      report_.emplace(setup_, *metrics_, first_step_);
    }
    workers_->start(
        setup_.checkpoint != nullptr ? units_done(plan_, *setup_.checkpoint) : UnitsDone(),
        first_step_);
    const AsyncWorkers::Hooks hooks{
        .wants_stop = [this] { return own_stop_request() == StopRequest::kStop; },
        .report =
            [this](const StepResult& result) {
              clock_->step_done(result.times.step);
              report_->add(result.step, result, std::nullopt);
              report_->log_async(result);
            },
        .due = [this](std::int64_t step) -> AsyncWorkers::Due {
          return {.save = is_save_step(step), .evaluation = is_evaluation_step(step)};
        },
        .wants_save = [this] { return clock_->save_due(now_seconds()); }};
    Outcome outcome = Outcome::kFinished;
    for (bool goes_on = true; goes_on;) {
      const AsyncWorkers::Cut cut = workers_->work(hooks);
      const bool stops = cut.stops && !cut.ends;
      goes_on = !cut.ends && !stops;
      if (cut.saves || !goes_on) {
        save(cut.step, goes_on ? OnFailure::kWarn : OnFailure::kThrow);
        report_save();
      }
      if (stops) {
        setup_.log.info(
            "stopped {} after step {} of {}, checkpoint written; continue with --run.resume=auto",
            stop_reason(), cut.step, plan_.total_steps);
        outcome = Outcome::kStopped;
      } else if (cut.evaluates && goes_on) {
        outcome = evaluate(cut.step);
        goes_on = outcome == Outcome::kFinished && !patience_is_over_;
      }
      if (patience_is_over_) {
        save(cut.step, OnFailure::kThrow);
        log_patience(cut.step);
      }
    }
    setup_.log.info("{}", workers_->summary());
    workers_->stop();
    return outcome;
  }

  /// What this rank asks of all ranks.
  [[nodiscard]] StepRequests requests(std::int64_t step) {
    StepRequests mine;
    if (report_ && report_->is_log_step(step)) {
      mine.add(StepRequest::kTimes);
    }
    if (own_stop_request() == StopRequest::kStop) {
      mine.add(StepRequest::kStop);
    }
    if (clock_ && clock_->save_due(now_seconds())) {
      mine.add(StepRequest::kSave);
    }
    if (writer_->is_writing()) {
      mine.add(StepRequest::kWait);
    }
    return mine;
  }

  [[nodiscard]] StopRequest own_stop_request() {
    return clock_ && clock_->stop_due(now_seconds()) ? StopRequest::kStop : setup_.stop_request();
  }

  /// Why the run stops, on rank 0. Warns where the time limit leaves no room to train.
  [[nodiscard]] std::string stop_reason() const {
    const std::string warning = clock_ ? clock_->time_limit_warning() : "";
    if (!warning.empty()) {
      setup_.log.warn("{}", warning);
    }
    return clock_ && clock_->time_is_over() ? "ahead of the time limit" : "on request";
  }

  [[nodiscard]] bool is_save_step(std::int64_t step) const {
    const auto hits = [&](std::int64_t every) { return every > 0 && step % every == 0; };
    return hits(config_.checkpoint.every) || hits(config_.checkpoint.keep_every);
  }

  /// Stalls outside steps do not count.
  void discard_waits() { static_cast<void>(setup_.groups.engine->take_device_waits()); }

  StepRequests train_step(std::int64_t step) {
    if (comm::Activity* const activity = setup_.groups.world->activity()) {
      activity->set_step(step);
    }
    begin_timeline(step);
    const double begin = now_seconds();
    results_.push_back(runner_->run(step, [&] { return requests(step); }));
    StepTimes& times = results_.back().times;
    if (islands_ && islands_->is_round_end(step)) {
      const double met = now_seconds();
      if (islands_->are_jobs()) {
        met_ = islands_->meet(step, [this] { return own_stop_request(); });
      }
      const double waited = now_seconds() - met + islands_->exchange(results_);
      times.communication.of(grid::Axis::kIslands) += waited;
      times.step += waited;
    }
    end_timeline(step, begin, times);
    if (clock_) {
      clock_->step_done(times.step);
    }
    stragglers_.add_step(times.compute);
    const StepRequests asked = results_.back().summary.requests;
    if (islands_ && !islands_->is_round_end(step)) {
      StepRequests wait;  // the other islands are at other steps
      wait.add(StepRequest::kWait);
      return wait;
    }
    std::optional<RankTimes> ranks;
    if (asked.has(StepRequest::kTimes)) {
      ranks = stragglers_.end_window(setup_.log);
    }
    for (const StepResult& result : results_) {
      if (report_) {
        report_->add(result.step, result, result.step == step ? ranks : std::nullopt);
      }
    }
    results_.clear();
    return asked;
  }

  Outcome evaluate(std::int64_t step) {
    if (setup_.test_data == nullptr) {
      return Outcome::kFinished;
    }
    // Bad test data may end the run.
    state_.drain();
    writer_->finish();
    report_save();
    const PhaseMark phase(*setup_.groups.world, comm::Phase::kEvaluation);
    if (islands_) {
      islands_->show_outer();
    }
    StopPolls polls(*setup_.groups.world, [this] { return own_stop_request(); });
    std::vector<std::int64_t> answers;
    const std::optional<EvaluationResult> result = evaluated(step, answers, polls);
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
    const EvaluateRecord record = record_of(plan_, step, *result);
    write_text_sample(step, polls);
    if (metrics_) {
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
    const bool best = judged.has(StepRequest::kSave);
    setup_.log.info("step {}: test {}{}", step, text_of(plan_, *result),
                    best ? "; the best so far" : "");
    patience_is_over_ = judged.has(StepRequest::kStop) && step < plan_.total_steps;
    if (best && saved_step_ == step && !writer_->has_failed()) {
      // Saved before the evaluation, when another checkpoint was the best.
      if (metrics_) {
        metrics_->sync();
      }
      tidy_checkpoints(plan_, *setup_.groups.world, step, best_step(step), setup_.log);
    } else if (best) {
      save(step, OnFailure::kWarn);
    }
    return Outcome::kFinished;
  }

  /// The text that TensorBoard shows of a language model.
  void write_text_sample(std::int64_t step, StopPolls& polls) {
    constexpr std::int64_t kPrompt = 16;
    if (config_.run.tensorboard_text == 0) {
      return;
    }
    const std::int64_t half = std::max<std::int64_t>(1, plan_.model->input_shape()[0] / 2);
    std::vector<std::int64_t> text(static_cast<std::size_t>(std::min(kPrompt, half)));
    comm::agree(*setup_.groups.world, [&] {
      if (metrics_) {
        setup_.test_data->read_tokens(0, text);
      }
    });
    setup_.groups.world->broadcast(comm::payload_of(std::span(text)), 0);
    const std::vector<std::int64_t> sampled = sampled_text(
        setup_.context, plan_, rank_, setup_.groups, executor_, text, config_.run.tensorboard_text,
        {.seed = config_.run.seed}, [&] { return polls.poll() == StopRequest::kStop; });
    if (metrics_) {
      metrics_->write_event(
          step,
          value_of("evaluate/text", tokenizer_->decode(text, io::Continues::kNo) + "\n=>\n" +
                                        tokenizer_->decode(sampled, io::Continues::kYes) + "\n"));
    }
    discard_waits();
  }

  /// Whether evaluations decide about checkpoints or the end.
  [[nodiscard]] bool watches() const {
    return config_.checkpoint.best != config::Best::kOff || config_.train.patience > 0;
  }

  /// On rank 0 the best of the existing checkpoints and `step`; -1 where none is to be kept.
  [[nodiscard]] std::int64_t best_step(std::int64_t step) const {
    if (!history_ || config_.checkpoint.best == config::Best::kOff) {
      return -1;
    }
    std::optional<EvaluateRecord> best;
    try {
      std::vector<io::CheckpointEntry> entries = io::list_checkpoints(checkpoint_root(config_));
      entries.push_back({.step = step, .directory = {}});
      best = history_->best_of(entries);
    } catch (const Error&) {
      best = history_->best();  // the directory cannot be listed now
    }
    return best ? best->step : -1;
  }

  /// What follows from the evaluations up to `step`: kSave where it is the best checkpoint, kStop
  /// where train.patience is over. Rank 0 has them. Communication: a broadcast over the world.
  [[nodiscard]] StepRequests judgement(std::int64_t step) {
    StepRequests word;
    if (!watches()) {
      return word;
    }
    if (history_ && best_step(step) == step) {
      word.add(StepRequest::kSave);
    }
    if (history_ && config_.train.patience > 0 &&
        history_->since_best() >= config_.train.patience) {
      word.add(StepRequest::kStop);
    }
    setup_.groups.world->broadcast(comm::payload_of(std::span(&word, 1)), 0);
    return word;
  }

  void log_patience(std::int64_t step) const {
    if (history_) {
      setup_.log.info(
          "finished after step {} of {}: {} did not improve in the last {} evaluations "
          "(train.patience = {}); the best was {}",
          step, plan_.total_steps, history_->watched_name(), history_->since_best(),
          config_.train.patience, history_->best_text());
    }
  }

  /// `answers`: those to the test images that TensorBoard shows.
  std::optional<EvaluationResult> evaluated(std::int64_t step, std::vector<std::int64_t>& answers,
                                            StopPolls& polls) {
    const bool shows = config_.run.tensorboard == config::Switch::kOn && counts_classes(plan_) &&
                       io::holds_pictures(setup_.test_data->info());
    try {
      return train::evaluate(setup_.context, plan_, rank_, setup_.groups, executor_,
                             *setup_.test_data, nullptr, shows ? &answers : nullptr, &polls);
    } catch (const Error& error) {
      if (failure_of(error).code == ExitCode::kData) {
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
    comm::agree(*setup_.groups.world, [&] {
      if (setup_.groups.world->rank() == 0) {
        left = evaluation_left(config_.run.dir, first_step_);
      }
    });
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
    if (clock_ && writer_->has_failed()) {
      clock_->save_failed(now_seconds());
    } else if (clock_ && !writer_->is_saving()) {
      clock_->save_ended(now_seconds());
    }
    const std::optional<CheckpointRecord> report = writer_->take_report();
    if (report && metrics_) {
      metrics_->write(*report);
    }
  }

  void save(std::int64_t step, OnFailure on_failure) {
    if (plan_.emulated) {
      state_.drain();
      return;  // its weights are not trained
    }
    // Workers may have done units of later steps meanwhile.
    const std::int64_t updates = workers_ ? workers_->done().updates : 0;
    if (saved_step_ == step && saved_updates_ == updates && !writer_->has_failed()) {
      return;
    }
    saved_updates_ = updates;
    const PhaseMark phase(*setup_.groups.world, comm::Phase::kSave);
    writer_->finish();  // best_step() lists committed checkpoints
    report_save();
    if (clock_) {
      clock_->save_began(now_seconds());
    }
    state_.drain();
    if (metrics_) {
      metrics_->sync();
    }
    if (runner_) {
      runner_->confirm_state();
    }
    comm::agree(*setup_.groups.world, [&] {
      if (workers_) {
        workers_->require_finite();
      } else if (islands_) {
        islands_->require_finite();
      } else {
        state_.require_finite();
      }
    });
    writer_->begin(step, on_failure, best_step(step));
    // Islands that are jobs must not go back by more than the round that they have not saved.
    if (on_failure == OnFailure::kThrow || config_.checkpoint.background == config::Switch::kOff ||
        workers_ || (islands_ && islands_->are_jobs())) {
      writer_->finish();
    }
    saved_step_ = step;
    discard_waits();
  }

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  const config::RunConfig& config_;
  plan::RankPlan rank_;
  RankState state_;
  std::optional<Islands> islands_;  ///< parallel.sync = local
  pipeline::Executor executor_;
  std::optional<StepRunner> runner_;  ///< while it trains
  std::optional<MetricsFile> metrics_;
  std::optional<EvaluationHistory> history_;  ///< on rank 0, where it matters
  std::optional<RunClock> clock_;             ///< on rank 0
  Stragglers stragglers_;
  std::optional<AsyncWorkers> workers_;  ///< parallel.sync = async
  IslandRendezvous::Met met_;            ///< with other jobs, last
  std::vector<StepResult> results_;      ///< of the round so far
  /// On rank 0, for its checkpoints: the data set may have been deleted by then.
  std::optional<io::Tokenizer> tokenizer_;
  std::optional<CheckpointWriter> writer_;
  std::optional<Timeline> timeline_;  ///< while it records
  bool timeline_written_ = false;
  std::optional<StepReport> report_;  ///< on rank 0, while it trains
  std::int64_t first_step_ = 0;
  std::int64_t saved_step_ = -1;
  std::int64_t saved_updates_ = 0;  ///< of asynchronous workers
  std::int64_t evaluated_step_ = -1;
  bool patience_is_over_ = false;
};

}  // namespace

FinishedRun train(const TrainerSetup& setup) {
  std::optional<Trainer> trainer;
  comm::agree(*setup.groups.world, [&] { trainer.emplace(setup); });
  try {
    return trainer->run();
  } catch (const std::exception& error) {
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
