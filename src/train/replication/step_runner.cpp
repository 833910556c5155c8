#include "replication/step_runner.hpp"

#include <bit>
#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/device/profile_range.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/metrics.hpp"
#include "strata/train/step_dump.hpp"

#include "record/event_file.hpp"
#include "record/histograms.hpp"

namespace strata::train {
namespace {

bool same_bits(const StepSummary& left, const StepSummary& right) {
  const auto bits = [](double number) { return std::bit_cast<std::uint64_t>(number); };
  return bits(left.loss) == bits(right.loss) && bits(left.grad_norm) == bits(right.grad_norm);
}

std::string numbers_text(const StepSummary& summary) {
  return fmt::format("the loss is {} and the gradient norm {}", summary.loss, summary.grad_norm);
}

/// Ends the run on all ranks. Those of an island have the same numbers; other islands do not know
/// of them, so that the first rank of the island reports and ends the job.
[[noreturn]] void end_not_finite(const plan::Plan& plan, const plan::RankPlan& rank,
                                 const std::string& text) {
  const grid::Coordinates first{.islands = rank.coordinates.islands};
  if (plan.grid.islands > 1) {
    constexpr auto kForTheFirst = std::chrono::seconds(5);
    std::this_thread::sleep_for(rank.coordinates == first ? std::chrono::seconds(0) : kForTheFirst);
    throw Error(ExitCode::kDiverged, text);
  }
  throw comm::AgreedError(ExitCode::kDiverged, text);
}

[[noreturn]] void end_diverged(const plan::Plan& plan, const plan::RankPlan& rank,
                               std::int64_t step, const std::string& what) {
  end_not_finite(plan, rank,
                 fmt::format("the run diverged: at step {} {}; the last good checkpoint is "
                             "kept. Lower optimizer.learning_rate, set optimizer.clip_norm "
                             "or lengthen schedule.warmup_steps",
                             step, what));
}

}  // namespace

StepRunner::StepRunner(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
                       pipeline::Executor& executor, std::int64_t first_step)
    : setup_(setup),
      plan_(setup.plan),
      rank_(rank),
      state_(state),
      executor_(executor),
      check_(setup.groups, state),
      repeat_(setup, rank, state, executor, first_step),
      began_(now_seconds()),
      last_check_(began_),
      last_checked_step_(first_step) {
  restart(first_step);
}

StepResult StepRunner::run(std::int64_t step, const std::function<void(StepResult&)>& train) {
  const device::ProfileRange range(fmt::format("step {}", step));
  StepResult result{.step = step, .rate = optim::learning_rate(plan_.config.schedule, step)};
  const double begin = now_seconds();
  feed_->next();
  result.times.data = now_seconds() - begin;
  train(result);
  result.times.step = now_seconds() - begin;
  ++steps_;
  return result;
}

void StepRunner::restart(std::int64_t step) {
  feed_.emplace(setup_.context, setup_.train_data, rank_, training_loader(plan_, rank_, step));
}

void StepRunner::train(std::int64_t first_microbatch, const std::function<StepRequests()>& requests,
                       StepResult& result, const std::string& part) {
  const std::int64_t step = result.step;
  first_microbatch_ = first_microbatch;
  part_ = part;
  result.summary = checked_gradients(step, requests, result.times);
  result.update = judge(step, result);
  if (leaves_targets_out(plan_) && plan_.parts == 1) {
    result.numbers.emplace_back("counted_share_mean", result.summary.counted_share);
  }
  if (compares_documents(plan_)) {
    result.numbers.emplace_back("accuracy_mean", result.summary.accuracy);
    result.numbers.emplace_back("margin_mean", result.summary.margin);
  }
  if (result.summary.requests.has(StepRequest::kRepeat)) {
    repeat_.ask(step + 1);
  }
  if (result.update == StepResult::Update::kDone) {
    check_.confirm(ReplicaCheck::Until::kUpdate);
    if (is_histogram_step(step)) {
      result.histograms = histograms("gradients", state_.gradient_slices());
    }
    update(step, result);
    if (is_histogram_step(step)) {
      state_.drain();
      std::vector<io::TensorSlice> weights = state_.slices();
      const std::vector<io::TensorSlice> frozen = state_.frozen_slices();
      weights.insert(weights.end(), frozen.begin(), frozen.end());
      result.histograms += histograms("weights", weights);
      // The host's wait counts as other.
      static_cast<void>(setup_.groups.engine->take_device_waits());
    }
    skipped_in_a_row_ = 0;
    if (result.summary.requests.has(StepRequest::kCheck)) {
      check(step);
    }
  }
}

bool StepRunner::is_histogram_step(std::int64_t step) const {
  const auto& run = plan_.config.run;
  return run.tensorboard_histograms > 0 && step % run.tensorboard_histograms == 0;
}

std::string StepRunner::histograms(const std::string& prefix,
                                   const std::vector<io::TensorSlice>& slices) {
  std::string values;
  for (const Histogram& histogram :
       histograms_of(prefix, slices, plan_, *setup_.groups.world, setup_.context.stream())) {
    values += value_of(histogram);
  }
  return values;
}

StepSummary StepRunner::checked_gradients(std::int64_t step,
                                          const std::function<StepRequests()>& requests,
                                          StepTimes& times) {
  const auto own = [&] {
    return gradients(step, {rank_, *feed_, first_microbatch_}, requests, times);
  };
  if (!repeat_.is_due(step)) {
    return own();
  }
  return repeat_.run(step, *feed_, own, [&](const plan::RankPlan& rank, SampleFeed& feed) {
    // As for other checks, the step's time counts as other.
    StepTimes spare;
    return gradients(
        step, {rank, feed}, [] { return StepRequests(); }, spare);
  });
}

StepSummary StepRunner::gradients(std::int64_t step, const Work& work,
                                  const std::function<StepRequests()>& requests, StepTimes& times) {
  const std::int64_t batch = plan_.config.batch.global;
  const std::int64_t first_sample = (step - 1) * batch;
  BatchSource source(plan_, work.rank.offsets, work.feed, first_sample, first_sample + batch,
                     work.first_microbatch);
  setup_.hooks.step(StepPoint::kComputing, step, state_);
  StepDump* const dump =
      setup_.dump != nullptr && setup_.dump->step() == step ? setup_.dump : nullptr;
  if (dump != nullptr) {
    dump->begin(part_, state_);
  }
  state_.reset_clock();
  const pipeline::ExecutionTimes execution = executor_.train(
      plan_.training, source,
      1.0 / static_cast<double>(part_batch(plan_) * plan_.targets_per_sample), state_.reducer());
  if (work.first_microbatch + plan_.microbatches == std::ssize(work.rank.offsets)) {
    work.feed.prefetch();
  }
  const comm::ExposedSeconds exposed = state_.exposed_seconds();
  times.bubble += execution.pipeline_wait;
  times.communication += exposed;
  times.compute += execution.compute - exposed.total();

  const double reduced = now_seconds();
  const double tied = state_.combine_tied();
  setup_.hooks.step(StepPoint::kReduced, step, state_);
  if (dump != nullptr) {
    dump->end(part_, state_, setup_.context.stream());
  }
  StepRequests mine = requests();
  if (check_due(step)) {
    mine.add(StepRequest::kCheck);
  }
  if (repeat_.is_wanted(step + 1)) {
    mine.add(StepRequest::kRepeat);
  }
  // A repeated step on other lanes has other slices of the gradients.
  const bool digests = has_digests(plan_, step) && &work.rank == &rank_;
  StepSummary summary = summarize_step(plan_, rank_, setup_.groups, state_, mine, sets_of(source),
                                       digests ? std::optional(part_) : std::nullopt);
  comm::ExposedSeconds exchanged = summary.communication;
  exchanged.of(grid::Axis::kPipeline) += tied;
  times.communication += exchanged;
  times.compute += now_seconds() - reduced - exchanged.total();
  // On a GPU the host counted these stalls as compute. They include the stalls of the last
  // update, for which the host did not wait.
  count_device_waits(times, setup_.groups.engine->take_device_waits());
  return summary;
}

std::int64_t StepRunner::sets_told_apart() const {
  const io::Dataset& data = setup_.train_data;
  const bool known = data.mixture() != nullptr && data.sets().size() <= kMostSets &&
                     plan_.config.numerics.loss_pieces <= 1 && !compares_documents(plan_);
  return known ? std::ssize(data.sets()) : 0;
}

SampleSets StepRunner::sets_of(BatchSource& source) const {
  SampleSets sets{.count = sets_told_apart(), .of_samples = {}};
  const bool has_losses = rank_.coordinates.pipeline == loss_stage(plan_);
  for (std::int64_t m = 0; sets.count > 0 && has_losses && m < plan_.microbatches; ++m) {
    const std::int64_t first = source.first_row(m);
    for (std::int64_t row = 0; row < plan_.config.batch.micro; ++row) {
      sets.of_samples.push_back(
          setup_.train_data.mixture()->at(plan_.config.run.seed, first + row).set);
    }
  }
  return sets;
}

StepResult::Update StepRunner::judge(std::int64_t step, StepResult& result) {
  if (is_finite(result.summary)) {
    return StepResult::Update::kDone;
  }
  switch (plan_.config.train.nonfinite) {
    case config::Nonfinite::kSkip:
      return skip(step, result.summary);
    case config::Nonfinite::kRepeat:
      compute_again(step, result);
      return StepResult::Update::kDone;
    case config::Nonfinite::kStop:
      break;
  }
  end_diverged(plan_, rank_, step, numbers_text(result.summary));
}

StepResult::Update StepRunner::skip(std::int64_t step, const StepSummary& summary) {
  constexpr std::int64_t kMostInARow = 10;
  ++skipped_;
  if (++skipped_in_a_row_ > kMostInARow) {
    end_diverged(plan_, rank_, step,
                 fmt::format("{}, as at {} steps before it, which were skipped",
                             numbers_text(summary), kMostInARow));
  }
  setup_.log.warn("step {} is skipped: {}; the weights stay as they were", step,
                  numbers_text(summary));
  return StepResult::Update::kSkipped;
}

void StepRunner::compute_again(std::int64_t step, StepResult& result) {
  const StepSummary first = result.summary;
  result.summary = gradients(
      step, {rank_, *feed_, first_microbatch_}, [&] { return first.requests; }, result.times);
  const StepSummary& second = result.summary;
  if (same_bits(first, second)) {
    end_diverged(plan_, rank_, step,
                 numbers_text(first) + ", and the same when computed once more");
  }
  const std::string differ = fmt::format(
      "at step {} {}; computed once more from the same weights and samples, {}. Two results of one "
      "computation point to a hardware fault: have the nodes' memory and GPUs checked",
      step, numbers_text(first), numbers_text(second));
  if (!is_finite(second)) {
    end_not_finite(plan_, rank_, differ);
  }
  setup_.log.warn("{}. The run goes on with the second result", differ);
}

void StepRunner::update(std::int64_t step, StepResult& result) {
  const double updating = now_seconds();
  const double scale = gradient_scale(result.summary, plan_.config.optimizer.clip_norm);
  const double waited = state_.update(result.rate, scale, step);
  result.times.communication.of(grid::Axis::kPipeline) += waited;
  result.times.compute += now_seconds() - updating - waited;
}

/// Rank 0 decides, from what the last check took.
bool StepRunner::check_due(std::int64_t step) const {
  const auto& train = plan_.config.train;
  if (setup_.groups.world->rank() != 0 || train.check == config::Switch::kOff ||
      !plan::replication_of(plan_).traits(plan_).replicas_stay_equal) {
    return false;
  }
  if (train.check_every > 0) {
    return step % train.check_every == 0;
  }
  constexpr std::int64_t kSteps = 100;
  constexpr double kShareOfTime = 0.01;
  return step - last_checked_step_ >= kSteps &&
         check_.seconds() <= kShareOfTime * (now_seconds() - last_check_);
}

void StepRunner::check(std::int64_t step) {
  state_.drain();
  // The host's wait counts as other.
  static_cast<void>(setup_.groups.engine->take_device_waits());
  setup_.hooks.step(StepPoint::kChecking, step, state_);
  check_.compare(step);
  setup_.hooks.step(StepPoint::kChecked, step, state_);
  last_checked_step_ = step;
  last_check_ = now_seconds();
}

void StepRunner::log_summary() const {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, std::int64_t count, double seconds) {
    if (count > 0) {
      parts.push_back(fmt::format("{}: {}, {:.2g} % of the time", what, count,
                                  100.0 * seconds / (now_seconds() - began_)));
    }
  };
  add("checks of weights and optimizer state", check_.comparisons(), check_.all_seconds());
  add("repeated steps", repeat_.steps(), repeat_.seconds());
  if (!parts.empty()) {
    setup_.log.info("{}", fmt::join(parts, "; "));
  }
  if (skipped_ > 0) {
    setup_.log.warn("{} of {} steps were skipped, because loss or gradients were not finite",
                    skipped_, steps_);
  }
}

}  // namespace strata::train
