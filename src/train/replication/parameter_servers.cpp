#include "replication/parameter_servers.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/ops/convert.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/step_summary.hpp"

namespace strata::train {
namespace {

/// The words of rank 0 that all ranks use: the claims, the cuts (their number in the upper bits,
/// the flags below), whether each rank was requested to stop, the units that each has done, and a
/// ring of results.
enum WindowWord : std::int64_t { kClaims, kCut, kStopRequests };
/// Results that rank 0 has not read yet: unit + 1, loss, norm.
constexpr std::int64_t kRing = plan::kUnitRing;
constexpr std::int64_t kRingWords = plan::kUnitRingWords;

/// The metadata key of UnitsDone.
constexpr const char* kUnits = "units";

/// The units that a checkpoint's run had done; all of its steps where it was of another kind.
/// Throws: Error(kCheckpoint) where the record is not valid.
UnitsDone units_done(const plan::Plan& plan, const io::Checkpoint& checkpoint) {
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

/// The run has ended, beside the requests of a cut. The number of the cut is above.
constexpr comm::Window::Word kEnds = 128;
static_assert(static_cast<comm::Window::Word>(StepRequest::kEvaluate) < kEnds);
constexpr comm::Window::Word kFlagEnd = 256;

void pause() {
  constexpr auto kPause = std::chrono::microseconds(500);
  std::this_thread::sleep_for(kPause);
}

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

ParameterServers::ParameterServers(const TrainerSetup& setup, const plan::RankPlan& rank,
                                   RankState& state, pipeline::Executor& executor)
    : setup_(setup),
      plan_(setup.plan),
      rank_(rank),
      world_(*setup.groups.world),
      state_(state),
      executor_(executor),
      host_(1),
      server_(world_, plan_.config.optimizer.options, plan_.config.async.options, rank.layout,
              *rank.server_buckets, plan::servers(plan_),
              compute_dtype(plan_.config.numerics.dtype)),
      control_(world_.make_window(plan::async_control_words(plan_, world_.rank()))),
      units_(plan_.total_steps * plan_.parts) {}

bool ParameterServers::is_worker() const {
  return world_.rank() >= plan_.config.async.servers;
}

void ParameterServers::take_weights() {
  // Both are ranges of the same parameters, divided differently.
  for (const optim::OwnedPiece& piece : server_.pieces()) {
    for (const optim::OwnedPiece& from : state_.optimizer().pieces()) {
      const std::int64_t begin = std::max(piece.range.begin, from.range.begin);
      const std::int64_t end = std::min(piece.range.end, from.range.end);
      if (from.parameter == piece.parameter && begin < end) {
        device::copy_tensor(
            state_.optimizer().master(from).flat_slice(begin - from.range.begin, end - begin),
            server_.master(piece).flat_slice(begin - piece.range.begin, end - begin));
      }
    }
  }
}

void ParameterServers::load(const io::Checkpoint* from) {
  if (from == nullptr) {
    take_weights();
    return;
  }
  const io::Checkpoint& checkpoint = *from;
  state_.load_weights(checkpoint);
  for (const optim::OwnedPiece& piece : server_.pieces()) {
    const nn::ParameterSpec& spec = state_.spec_of(piece);
    state_.read(checkpoint, plan::weight_name(spec), piece, server_.master(piece));
    const std::vector<std::string> names = plan::state_names(spec, plan_.config.optimizer.options);
    for (std::size_t i = 0; i < names.size(); ++i) {
      state_.read(checkpoint, names[i], piece, server_.state(i, piece));
    }
  }
}

std::int64_t ParameterServers::start(std::int64_t step) {
  if (setup_.checkpoint != nullptr) {
    begun_ = units_done(plan_, *setup_.checkpoint);
  }
  next_report_ = step;
  done_count_ = begun_.next - std::ssize(begun_.open);
  for (const UnitResult& result : begun_.results) {
    open_steps_[result.unit / plan_.parts][result.unit % plan_.parts] = result;
  }
  return step;
}

std::optional<std::int64_t> ParameterServers::unit_of(std::int64_t claim) const {
  if (claim < std::ssize(begun_.open)) {
    return begun_.open[static_cast<std::size_t>(claim)];
  }
  const std::int64_t unit = begun_.next + claim - std::ssize(begun_.open);
  return unit < units_ ? std::optional(unit) : std::nullopt;
}

void ParameterServers::claim() {
  if (next_ || all_claimed_) {
    return;
  }
  await_slowest();
  const auto unit = unit_of(static_cast<std::int64_t>(control_->fetch_add(0, kClaims, Word{1})));
  if (!unit) {
    all_claimed_ = true;
    return;
  }
  next_.emplace(Claimed{.unit = *unit});
  next_->feed = std::make_unique<SampleFeed>(setup_.context, setup_.train_data, rank_,
                                             unit_loader(plan_, rank_, *unit));
}

void ParameterServers::require_progress() {
  server_.require_serving();
  std::vector<Word> done(static_cast<std::size_t>(world_.size()));
  control_->get(0, kStopRequests + world_.size(), done);
  const Word sum = std::accumulate(done.begin(), done.end(), Word{0});
  if (!is_worker()) {
    const std::int64_t units =
        begun_.next - std::ssize(begun_.open) + static_cast<std::int64_t>(sum);
    show_step(std::min(units / plan_.parts + 1, plan_.total_steps));
  }
  if (sum != progress_) {
    progress_ = sum;
    progressed_ = now_seconds();
  }
  if (now_seconds() - progressed_ > world_.timeout().seconds) {
    fail(ExitCode::kPeer,
         "no worker has finished a unit for {:.0f} s, and rank {} waits for units of others; look "
         "for a rank that stands still, or set a longer run.timeout",
         world_.timeout().seconds, world_.rank());
  }
}

void ParameterServers::await_slowest() {
  const std::int64_t bound = plan_.config.async.ahead;
  if (bound == 0) {
    return;
  }
  std::vector<Word> done(static_cast<std::size_t>(world_.size()));
  const double begin = now_seconds();
  while (true) {
    control_->get(0, kStopRequests + world_.size(), done);
    const Word mine = done[static_cast<std::size_t>(world_.rank())];
    const auto first = done.begin() + plan_.config.async.servers;
    const Word least = *std::min_element(first, done.end());
    // Who finds no unit any more does not catch up.
    const bool none_left = !unit_of(static_cast<std::int64_t>(control_->load(0, kClaims)));
    if (mine < least + static_cast<Word>(bound) || none_left ||
        control_->load(0, kCut) != cuts_seen_) {
      break;
    }
    require_progress();
    if (world_.rank() == 0) {
      collect();  // the slowest may need a place in the ring
    }
    pause();
  }
  times_.communication.of(grid::Axis::kIslands) += now_seconds() - begin;
}

void ParameterServers::fetch() {
  const double begin = now_seconds();
  const TensorView& weights = state_.weights();
  server_.finish_pushes();  // a worker sees its own updates
  server_.fetch([&](const optim::OwnedPiece& piece, const ConstTensorView& fetched) {
    device::write_from_host(weights.flat_slice(piece.arena_offset, piece.range.count()),
                            [&](std::int64_t first, const TensorView& into) {
                              const ConstTensorView from = fetched.flat_slice(first, into.count());
                              if (from.dtype() == into.dtype()) {
                                device::copy_tensor(from, into);
                              } else {
                                ops::convert(host_, from, into);
                              }
                            });
  });
  times_.communication.of(grid::Axis::kIslands) += now_seconds() - begin;
}

void ParameterServers::show_step(std::int64_t step) {
  if (comm::Activity* const activity = world_.activity()) {
    activity->set_step(step);
  }
}

void ParameterServers::compute(std::int64_t unit, SampleFeed& feed) {
  const std::int64_t step = unit / plan_.parts + 1;
  show_step(step);
  const std::int64_t batch = plan_.config.batch.global;
  double begin = now_seconds();
  feed.next();
  times_.data += now_seconds() - begin;
  fetch();
  begin = now_seconds();
  const std::vector<std::int64_t> offsets = unit_offsets(plan_, unit);
  BatchSource source(plan_, offsets, feed, (step - 1) * batch, step * batch);
  state_.reset_clock();
  static_cast<void>(executor_.train(
      plan_.training, source,
      1.0 / static_cast<double>(part_batch(plan_) * plan_.targets_per_sample), state_.reducer()));
  state_.combine_tied();
  const StepSummary summary = summarize_step(plan_, rank_, setup_.groups, state_, {});
  times_.compute += now_seconds() - begin;
  if (!is_finite(summary)) {
    if (plan_.config.train.nonfinite == config::Nonfinite::kStop) {
      fail(
          ExitCode::kDiverged,
          "the run diverged: at step {} the loss of {} samples is {} and the gradient norm {}; the "
          "last good checkpoint is kept. Lower optimizer.learning_rate, set optimizer.clip_norm "
          "or async.staleness",
          step, part_batch(plan_), summary.loss, summary.grad_norm);
    }
  } else {
    begin = now_seconds();
    const double limit = plan_.config.optimizer.clip_norm;
    const double scale = limit > 0.0 && summary.grad_norm > limit ? limit / summary.grad_norm : 1.0;
    const TensorView sums = state_.reducer().sums();
    server_.push(
        [&](const optim::OwnedPiece& piece, const TensorView& into) {
          const device::HostView gradient(sums.flat_slice(piece.arena_offset, into.count()),
                                          setup_.context.stream());
          device::copy_tensor(gradient.view(), into);
        },
        optim::learning_rate(plan_.config.schedule, step), scale);
    times_.communication.of(grid::Axis::kIslands) += now_seconds() - begin;
  }
  record({.unit = unit, .loss = summary.loss, .grad_norm = summary.grad_norm});
}

std::int64_t ParameterServers::word_of_ring(std::int64_t unit) const {
  return kStopRequests + 2 * world_.size() + unit % kRing * kRingWords;
}

void ParameterServers::record(const UnitResult& result) {
  const std::int64_t word = word_of_ring(result.unit);
  // Rank 0 may be behind by the whole ring.
  while (control_->load(0, word) != 0) {
    require_progress();
    if (world_.rank() == 0) {
      collect();
    } else {
      pause();
    }
  }
  const std::array<Word, 2> numbers{std::bit_cast<Word>(result.loss),
                                    std::bit_cast<Word>(result.grad_norm)};
  control_->put(0, word + 1, numbers);
  control_->store(0, word, static_cast<Word>(result.unit) + 1);
  control_->fetch_add(0, kStopRequests + world_.size() + world_.rank(), Word{1});
}

void ParameterServers::collect() {
  for (std::int64_t slot = 0; slot < kRing; ++slot) {
    const std::int64_t word = word_of_ring(slot);
    const Word unit = control_->load_own(word);
    if (unit == 0) {
      continue;
    }
    const std::int64_t of = static_cast<std::int64_t>(unit) - 1;
    open_steps_[of / plan_.parts][of % plan_.parts] = {
        .unit = of,
        .loss = std::bit_cast<double>(control_->load_own(word + 1)),
        .grad_norm = std::bit_cast<double>(control_->load_own(word + 2))};
    control_->store_own(word, 0);
    ++done_count_;
  }
}

StepResult ParameterServers::result_of(std::int64_t step, const StepTimes& times) {
  std::vector<double> losses;
  double squares = 0.0;
  for (const auto& [lane, unit] : open_steps_.at(step)) {
    losses.push_back(unit.loss);
    squares += unit.grad_norm * unit.grad_norm;
  }
  const auto units = static_cast<double>(losses.size());
  StepResult result{.step = step + 1,
                    .rate = optim::learning_rate(plan_.config.schedule, step + 1),
                    .times = times};
  result.summary.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / units;
  result.summary.grad_norm = std::sqrt(squares / units);
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
  result.numbers = {
      {"updates_per_second", static_cast<double>(now.applied - counts_.applied) / times.step},
      {"staleness_mean", mean_staleness},
      {"staleness_max", static_cast<double>(most_staleness)},
      {"scaled", static_cast<double>(now.scaled - counts_.scaled)},
      {"dropped", static_cast<double>(dropped)}};
  result.progress = {fmt::format("units {}/{}", done_count_, units_),
                     fmt::format("staleness {:.1f}, at most {}  dropped {}", mean_staleness,
                                 most_staleness, dropped)};
  counts_ = now;
  if (!is_finite(result.summary)) {
    constexpr std::int64_t kMostInARow = 10;
    result.update = StepResult::Update::kSkipped;
    setup_.log.warn("step {}: the gradient of a unit is not finite and is skipped", step + 1);
    if (++skipped_in_a_row_ > kMostInARow) {
      fail(
          ExitCode::kDiverged,
          "the run diverged: the gradients of units were not finite at {} steps in a row; the last "
          "good checkpoint is kept. Lower optimizer.learning_rate, set optimizer.clip_norm or "
          "async.staleness",
          skipped_in_a_row_);
    }
  } else {
    skipped_in_a_row_ = 0;
  }
  return result;
}

StepRequests ParameterServers::report_steps(TrainingLoop& loop) {
  collect();
  StepRequests due;
  std::int64_t ready = 0;
  const auto is_complete = [&](std::int64_t step) {
    const auto found = open_steps_.find(step);
    return found != open_steps_.end() && std::ssize(found->second) == plan_.parts;
  };
  while (is_complete(next_report_ + ready)) {
    ++ready;
  }
  StepTimes times = times_;
  times.step = now_seconds() - last_report_;
  for (std::int64_t i = 0; i < ready; ++i) {
    loop.report(result_of(next_report_, divided(times, ready)));
    due.add(loop.due(next_report_ + 1));
    open_steps_.erase(next_report_++);
  }
  if (ready > 0) {
    times_ = {};
    last_report_ = now_seconds();
  }
  return due;
}

void ParameterServers::decide(TrainingLoop& loop, StepRequests own) {
  StepRequests wanted = report_steps(loop);
  for (std::int64_t r = 0; r < world_.size(); ++r) {
    if (control_->load_own(kStopRequests + r) != 0) {
      wanted.add(StepRequest::kStop);
    }
  }
  if (own.has(StepRequest::kSave)) {
    wanted.add(StepRequest::kSave);
  }
  // A checkpoint of a longer run has more.
  const bool ends = done_count_ >= std::max(units_, begun_.next);
  const Word flags = static_cast<Word>(wanted.encoded()) + (ends ? kEnds : 0);
  if (flags != 0) {
    control_->store_own(kCut, (control_->load_own(kCut) / kFlagEnd + 1) * kFlagEnd + flags);
  }
}

AgreedPoint ParameterServers::advance(TrainingLoop& loop) {
  if (!std::exchange(serves_, true)) {
    last_report_ = now_seconds();
    server_.start(begun_.updates);
  }
  progressed_ = now_seconds();
  while (true) {
    server_.require_serving();
    const StepRequests own = loop.requests(next_report_ + 1);
    if (own.has(StepRequest::kStop)) {
      control_->store(0, kStopRequests + world_.rank(), 1);
    }
    if (world_.rank() == 0) {
      decide(loop, own);
    }
    if (control_->load(0, kCut) != cuts_seen_) {
      return cut(loop);
    }
    if (is_worker()) {
      claim();
    }
    if (!next_) {
      require_progress();
      pause();
      continue;
    }
    const Claimed now = std::move(*next_);
    next_.reset();
    claim();  // whose samples are read meanwhile
    compute(now.unit, *now.feed);
  }
}

AgreedPoint ParameterServers::cut(TrainingLoop& loop) {
  server_.finish_pushes();
  world_.barrier();
  cuts_seen_ = control_->load(0, kCut);
  // All claims and results are in.
  const std::int64_t mine = next_ ? next_->unit : -1;
  std::vector<std::int64_t> held(static_cast<std::size_t>(world_.size()));
  world_.all_gather(comm::payload_of(std::span(&mine, 1)), comm::payload_of(std::span(held)));
  const auto claims = static_cast<std::int64_t>(control_->load(0, kClaims));
  const std::int64_t first = std::min(claims, std::ssize(begun_.open));
  done_ = {.next = std::min(std::max(units_, begun_.next), begun_.next + claims - first),
           .open = {begun_.open.begin() + first, begun_.open.end()},
           .updates = server_.updates()};
  std::ranges::copy_if(held, std::back_inserter(done_.open),
                       [](std::int64_t unit) { return unit >= 0; });
  std::ranges::sort(done_.open);
  Word flags = cuts_seen_ % kFlagEnd;
  if (world_.rank() == 0) {
    flags |= static_cast<Word>(report_steps(loop).encoded());
    for (const auto& [step, units] : open_steps_) {
      for (const auto& [lane, unit] : units) {
        done_.results.push_back(unit);
      }
    }
  }
  std::vector<std::int64_t> agreed{static_cast<std::int64_t>(flags), next_report_};
  world_.broadcast(comm::payload_of(std::span(agreed)), 0);
  flags = static_cast<Word>(agreed[0]);
  AgreedPoint point{.step = agreed[1], .updates = done_.updates, .ends = (flags & kEnds) != 0};
  point.requests.add_encoded(static_cast<double>(flags % kEnds));
  show_step(point.step);
  fetch();
  return point;
}

void ParameterServers::require_good() {
  comm::agree(world_, [&] {
    for (const optim::OwnedPiece& piece : server_.pieces()) {
      with_floating(server_.master(piece).dtype(), [&]<typename T>(T) {
        const std::span<const T> weights = ConstTensorView(server_.master(piece)).host<T>();
        if (!std::ranges::all_of(weights, [](T weight) { return std::isfinite(weight); })) {
          fail(ExitCode::kDiverged,
               "the run diverged: {} holds numbers that are not finite; no checkpoint is written, "
               "and "
               "the last good one is kept. Lower optimizer.learning_rate, set optimizer.clip_norm "
               "or "
               "async.staleness",
               state_.spec_of(piece).name);
        }
      });
    }
  });
}

std::vector<io::TensorSlice> ParameterServers::snapshot(const device::Buffer& memory) {
  std::vector<io::TensorSlice> all;
  const auto add = [&](const std::string& name, const optim::OwnedPiece& piece,
                       const TensorView& data) {
    if (auto slice = state_.slice_of(name, piece, data)) {
      all.push_back(std::move(*slice));
    }
  };
  for (const optim::OwnedPiece& piece : server_.pieces()) {
    const nn::ParameterSpec& spec = state_.spec_of(piece);
    add(plan::weight_name(spec), piece, server_.master(piece));
    const std::vector<std::string> names = plan::state_names(spec, plan_.config.optimizer.options);
    for (std::size_t i = 0; i < names.size(); ++i) {
      add(names[i], piece, server_.state(i, piece));
    }
  }
  if (rank_.coordinates.islands == 0) {
    std::vector<io::TensorSlice> frozen = state_.frozen_slices();
    if (!frozen.empty() && frozen.front().data.memory_space() != MemorySpace::kHost) {
      copy_data(frozen, memory, 0, setup_.context.stream());
    }
    all.insert(all.end(), frozen.begin(), frozen.end());
  }
  return all;
}

nlohmann::json ParameterServers::record() const {
  nlohmann::json results = nlohmann::json::array();
  for (const UnitResult& result : done_.results) {
    // JSON has no NaN: null.
    results.push_back({result.unit, result.loss, result.grad_norm});
  }
  return {{"reproducible", plan::replication_of(plan_).reproducible()},
          {kUnits,
           {{"next", done_.next},
            {"open", done_.open},
            {"updates", done_.updates},
            {"results", results}}}};
}

void ParameterServers::stop() {
  if (!serves_) {
    return;
  }
  setup_.log.info("{}", summary());
  server_.stop();
  control_->close();
}

std::string ParameterServers::summary() {
  const optim::ParameterServer::Counts counts = server_.counts();
  const std::array<std::int64_t, 6> mine{counts.applied,         counts.scaled,
                                         counts.dropped,         counts.most_applied,
                                         server_.pushed_bytes(), server_.rereads()};
  std::vector<std::array<std::int64_t, 6>> all(static_cast<std::size_t>(world_.size()));
  world_.all_gather(comm::payload_of(std::span(&mine, 1)), comm::payload_of(std::span(all)));
  std::array<std::int64_t, 6> sums{};
  std::int64_t most = 0;
  for (const auto& rank : all) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += rank[i];
    }
    most = std::max(most, rank[3]);
  }
  // Each push goes to all servers; those of rank 0 are counted.
  return fmt::format(
      "asynchronous updates: {} applied, {} of them scaled; {} dropped; staleness up to {} in "
      "full; "
      "{} pushed; {} slices read again because they were being updated",
      all[0][0], all[0][1], all[0][2], most, bytes_text(sums[4]), sums[5]);
}

}  // namespace strata::train
