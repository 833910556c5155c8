#include "replication/units.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/plan/replication.hpp"

namespace strata::train {
namespace {

/// The metadata key of UnitsDone.
constexpr const char* kUnits = "units";

static_assert(static_cast<UnitWindow::Word>(StepRequest::kEvaluate) < UnitWindow::kEnds);

/// One of `parts` equal parts.
StepTimes divided(StepTimes times, std::int64_t parts) {
  const double share = 1.0 / static_cast<double>(parts);
  times.step *= share;
  times.compute *= share;
  times.communication *= share;
  times.data *= share;
  return times;
}

}  // namespace

UnitsDone units_in(const io::Checkpoint& checkpoint, const plan::Plan& plan) {
  const nlohmann::json& metadata = checkpoint.metadata();
  if (!metadata.contains(kUnits)) {
    return {.next = checkpoint.step() * plan.parts, .updates = checkpoint.step() * plan.parts};
  }
  const auto number = [](const nlohmann::json& json) {
    return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
  };
  try {
    const nlohmann::json& units = metadata.at(kUnits);
    const auto count = [&](const char* key) {
      return static_cast<std::int64_t>(
          units.at(key).get_ref<const nlohmann::json::number_unsigned_t&>());
    };
    UnitsDone done{.next = count("next"),
                   .open = units.at("open").get<std::vector<std::int64_t>>(),
                   .updates = count("updates")};
    for (const nlohmann::json& result : units.at("results")) {
      done.results.push_back({.unit = result.at(0).get<std::int64_t>(),
                              .loss = number(result.at(1)),
                              .grad_norm = number(result.at(2))});
    }
    return done;
  } catch (const std::exception& error) {
    fail(ExitCode::kCheckpoint, "{} has no valid record of its units ({}); use another checkpoint",
         checkpoint.directory().string(), error.what());
  }
}

nlohmann::json record_of(const UnitsDone& units) {
  nlohmann::json results = nlohmann::json::array();
  for (const UnitResult& result : units.results) {
    // JSON has no NaN: null.
    results.push_back({result.unit, result.loss, result.grad_norm});
  }
  return {{kUnits,
           {{"next", units.next},
            {"open", units.open},
            {"updates", units.updates},
            {"results", results}}}};
}

UnitWindow::UnitWindow(comm::Communicator& world, const plan::Plan& plan)
    : world_(world), window_(world.make_window(plan::async_control_words(plan, world.rank()))) {}

void UnitWindow::ask_for_cut(Word flags) {
  window_->store_own(kCut, (window_->load_own(kCut) / kFlagEnd + 1) * kFlagEnd + flags);
}

bool UnitWindow::is_asked_to_stop() const {
  for (std::int64_t rank = 0; rank < world_.size(); ++rank) {
    if (window_->load_own(kStops + rank) != 0) {
      return true;
    }
  }
  return false;
}

std::vector<UnitWindow::Word> UnitWindow::done() {
  std::vector<Word> done(static_cast<std::size_t>(world_.size()));
  window_->get(0, done_at(0), done);
  return done;
}

std::int64_t UnitWindow::place_of(std::int64_t rank, Word count) const {
  const auto slot = static_cast<std::int64_t>(count % Word{plan::kUnitRing});
  return taken_at(world_.size()) + (rank * plan::kUnitRing + slot) * plan::kUnitRingWords;
}

void UnitWindow::give(const UnitResult& result) {
  const std::array<Word, plan::kUnitRingWords> words{static_cast<Word>(result.unit),
                                                     std::bit_cast<Word>(result.loss),
                                                     std::bit_cast<Word>(result.grad_norm)};
  window_->put(0, place_of(world_.rank(), given_), words);
  window_->store(0, done_at(world_.rank()), ++given_);
}

std::vector<UnitResult> UnitWindow::take() {
  std::vector<UnitResult> results;
  for (std::int64_t rank = 0; rank < world_.size(); ++rank) {
    const Word given = window_->load_own(done_at(rank));
    for (Word count = window_->load_own(taken_at(rank)); count != given; ++count) {
      const std::int64_t place = place_of(rank, count);
      results.push_back({.unit = static_cast<std::int64_t>(window_->load_own(place)),
                         .loss = std::bit_cast<double>(window_->load_own(place + 1)),
                         .grad_norm = std::bit_cast<double>(window_->load_own(place + 2))});
    }
    window_->store_own(taken_at(rank), given);
  }
  return results;
}

void UnitSteps::begin(std::int64_t step, const UnitsDone& units) {
  reported_ = step;
  units_done_ = units.next - std::ssize(units.open);
  for (const UnitResult& result : units.results) {
    open_[result.unit / plan_.parts][result.unit % plan_.parts] = result;
  }
}

void UnitSteps::begin_window() {
  last_report_ = now_seconds();
}

void UnitSteps::collect() {
  for (const UnitResult& result : window_.take()) {
    open_[result.unit / plan_.parts][result.unit % plan_.parts] = result;
    ++units_done_;
  }
}

std::vector<UnitResult> UnitSteps::open_results() const {
  std::vector<UnitResult> results;
  for (const auto& [step, units] : open_) {
    for (const auto& [lane, unit] : units) {
      results.push_back(unit);
    }
  }
  return results;
}

StepRequests UnitSteps::report(TrainingLoop& loop, StepTimes& times) {
  collect();
  StepRequests due;
  std::int64_t ready = 0;
  const auto is_complete = [&](std::int64_t step) {
    const auto found = open_.find(step);
    return found != open_.end() && std::ssize(found->second) == plan_.parts;
  };
  while (is_complete(reported_ + ready)) {
    ++ready;
  }
  StepTimes whole = times;
  whole.step = now_seconds() - last_report_;
  for (std::int64_t i = 0; i < ready; ++i) {
    loop.report(result_of(reported_ + 1, open_.at(reported_), divided(whole, ready)));
    open_.erase(reported_++);
    due.add(loop.due(reported_));
  }
  if (ready > 0) {
    times = {};
    begin_window();
  }
  return due;
}

StepResult UnitSteps::result_of(std::int64_t step, const Units& units, const StepTimes& times) {
  double losses = 0.0;
  double squares = 0.0;
  for (const auto& [lane, unit] : units) {
    losses += unit.loss;
    squares += unit.grad_norm * unit.grad_norm;
  }
  const auto count = static_cast<double>(units.size());
  StepResult result{
      .step = step, .rate = optim::learning_rate(plan_.config.schedule, step), .times = times};
  result.summary.loss = losses / count;
  result.summary.grad_norm = std::sqrt(squares / count);
  count_updates(result);
  if (is_finite(result.summary)) {
    skipped_in_a_row_ = 0;
    return result;
  }
  constexpr std::int64_t kMostInARow = 10;
  result.update = StepResult::Update::kSkipped;
  setup_.log.warn("step {}: the gradient of a unit is not finite and is skipped", step);
  if (++skipped_in_a_row_ > kMostInARow) {
    fail(ExitCode::kDiverged,
         "the run diverged: the gradients of units were not finite at {} steps in a row; the last "
         "good checkpoint is kept. Lower optimizer.learning_rate, set optimizer.clip_norm or "
         "async.staleness",
         skipped_in_a_row_);
  }
  return result;
}

void UnitSteps::count_updates(StepResult& result) {
  const optim::ParameterServer::Counts now = server_.counts();
  std::int64_t pushes = 0;
  double mean_staleness = 0.0;
  std::int64_t most_staleness = 0;
  for (std::size_t i = 0; i < now.staleness.size(); ++i) {
    const std::int64_t count = now.staleness[i] - counts_.staleness[i];
    pushes += count;
    mean_staleness += static_cast<double>(count) * static_cast<double>(i);
    most_staleness = count > 0 ? static_cast<std::int64_t>(i) : most_staleness;
  }
  mean_staleness /= static_cast<double>(std::max<std::int64_t>(1, pushes));
  const std::int64_t dropped = now.dropped - counts_.dropped;
  result.numbers = {{"updates_per_second",
                     static_cast<double>(now.applied - counts_.applied) / result.times.step},
                    {"staleness_mean", mean_staleness},
                    {"staleness_max", static_cast<double>(most_staleness)},
                    {"scaled", static_cast<double>(now.scaled - counts_.scaled)},
                    {"dropped", static_cast<double>(dropped)}};
  result.progress = {fmt::format("units {}/{}", units_done_, plan_.total_steps * plan_.parts),
                     fmt::format("staleness {:.1f}, at most {}  dropped {}", mean_staleness,
                                 most_staleness, dropped)};
  counts_ = now;
}

}  // namespace strata::train
