#include "replication/async_workers.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/ops/convert.hpp"
#include "strata/train/checkpoint_names.hpp"
#include "strata/train/step_summary.hpp"

namespace strata::train {
namespace {

/// The words of rank 0 that all ranks use: the claims, the cuts (their number in the upper bits,
/// the flags below), what each rank asks for, the units that each has done, and a ring of results.
enum Place : std::int64_t { kClaims, kCut, kAsked };
/// Results that rank 0 has not read yet: unit + 1, loss, norm.
constexpr std::int64_t kRing = plan::kUnitRing;
constexpr std::int64_t kRingWords = plan::kUnitRingWords;

constexpr comm::Window::Word kStops = 1;
constexpr comm::Window::Word kSaves = 2;
constexpr comm::Window::Word kEvaluates = 4;
constexpr comm::Window::Word kEnds = 8;
constexpr comm::Window::Word kFlagEnd = 16;

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

AsyncWorkers::AsyncWorkers(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
                           pipeline::Executor& executor)
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
      units_(plan_.total_steps * plan_.islands),
      delay_seconds_(test_delay_seconds(world_.rank())) {}

bool AsyncWorkers::is_worker() const {
  return world_.rank() >= plan_.config.async.servers;
}

void AsyncWorkers::take_weights() {
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

void AsyncWorkers::load(const io::Checkpoint& checkpoint) {
  state_.load_weights(checkpoint);
  for (const optim::OwnedPiece& piece : server_.pieces()) {
    const nn::ParameterSpec& spec = state_.spec_of(piece);
    state_.read(checkpoint, weight_name(spec), piece, server_.master(piece));
    const std::vector<std::string> names = state_names(spec, plan_.config.optimizer.options);
    for (std::size_t i = 0; i < names.size(); ++i) {
      state_.read(checkpoint, names[i], piece, server_.state(i, piece));
    }
  }
}

void AsyncWorkers::start(const UnitsDone& done, std::int64_t step) {
  begun_ = done;
  next_report_ = step;
  done_count_ = done.next - std::ssize(done.open);
  for (const UnitResult& result : done.results) {
    open_steps_[result.unit / plan_.islands][result.unit % plan_.islands] = result;
  }
  last_report_ = now_seconds();
  server_.start(done.updates);
}

std::optional<std::int64_t> AsyncWorkers::unit_of(std::int64_t claim) const {
  if (claim < std::ssize(begun_.open)) {
    return begun_.open[static_cast<std::size_t>(claim)];
  }
  const std::int64_t unit = begun_.next + claim - std::ssize(begun_.open);
  return unit < units_ ? std::optional(unit) : std::nullopt;
}

void AsyncWorkers::claim() {
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

void AsyncWorkers::require_progress() {
  server_.require_serving();
  std::vector<Word> done(static_cast<std::size_t>(world_.size()));
  control_->get(0, kAsked + world_.size(), done);
  const Word sum = std::accumulate(done.begin(), done.end(), Word{0});
  if (!is_worker()) {
    const std::int64_t units =
        begun_.next - std::ssize(begun_.open) + static_cast<std::int64_t>(sum);
    show_step(std::min(units / plan_.islands + 1, plan_.total_steps));
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

void AsyncWorkers::await_slowest() {
  const std::int64_t bound = plan_.config.async.ahead;
  if (bound == 0) {
    return;
  }
  std::vector<Word> done(static_cast<std::size_t>(world_.size()));
  const double begin = now_seconds();
  while (true) {
    control_->get(0, kAsked + world_.size(), done);
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

void AsyncWorkers::fetch() {
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

void AsyncWorkers::show_step(std::int64_t step) {
  if (comm::Activity* const activity = world_.activity()) {
    activity->set_step(step);
  }
}

void AsyncWorkers::compute(std::int64_t unit, SampleFeed& feed) {
  const std::int64_t step = unit / plan_.islands + 1;
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
      1.0 / static_cast<double>(island_batch(plan_) * plan_.targets_per_sample), state_.reducer()));
  state_.combine_tied();
  const StepSummary summary = summarize_step(plan_, rank_, setup_.groups, state_, {});
  std::this_thread::sleep_for(std::chrono::duration<double>(delay_seconds_));
  times_.compute += now_seconds() - begin;
  if (!is_finite(summary)) {
    if (plan_.config.train.nonfinite == config::Nonfinite::kStop) {
      fail(
          ExitCode::kDiverged,
          "the run diverged: at step {} the loss of {} samples is {} and the gradient norm {}; the "
          "last good checkpoint is kept. Lower optimizer.learning_rate, set optimizer.clip_norm "
          "or async.staleness",
          step, island_batch(plan_), summary.loss, summary.grad_norm);
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

std::int64_t AsyncWorkers::word_of_ring(std::int64_t unit) const {
  return kAsked + 2 * world_.size() + unit % kRing * kRingWords;
}

void AsyncWorkers::record(const UnitResult& result) {
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
  control_->fetch_add(0, kAsked + world_.size() + world_.rank(), Word{1});
}

void AsyncWorkers::collect() {
  for (std::int64_t slot = 0; slot < kRing; ++slot) {
    const std::int64_t word = word_of_ring(slot);
    const Word unit = control_->load_own(word);
    if (unit == 0) {
      continue;
    }
    const std::int64_t of = static_cast<std::int64_t>(unit) - 1;
    open_steps_[of / plan_.islands][of % plan_.islands] = {
        .unit = of,
        .loss = std::bit_cast<double>(control_->load_own(word + 1)),
        .grad_norm = std::bit_cast<double>(control_->load_own(word + 2))};
    control_->store_own(word, 0);
    ++done_count_;
  }
}

StepResult AsyncWorkers::result_of(std::int64_t step, const StepTimes& times) {
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
  StepResult::Async async{.done_units = done_count_, .all_units = units_};
  std::int64_t pushes = 0;
  for (std::size_t i = 0; i < now.staleness.size(); ++i) {
    const std::int64_t count = now.staleness[i] - counts_.staleness[i];
    pushes += count;
    async.mean_staleness += static_cast<double>(count) * static_cast<double>(i);
    async.most_staleness = count > 0 ? static_cast<std::int64_t>(i) : async.most_staleness;
  }
  async.mean_staleness /= static_cast<double>(std::max<std::int64_t>(1, pushes));
  async.updates = now.applied - counts_.applied;
  async.scaled = now.scaled - counts_.scaled;
  async.dropped = now.dropped - counts_.dropped;
  counts_ = now;
  result.async = async;
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

AsyncWorkers::Word AsyncWorkers::report_steps(const Hooks& hooks) {
  collect();
  Word flags = 0;
  const auto add = [&flags](bool given, Word flag) { flags |= given ? flag : Word{0}; };
  std::int64_t ready = 0;
  const auto is_complete = [&](std::int64_t step) {
    const auto found = open_steps_.find(step);
    return found != open_steps_.end() && std::ssize(found->second) == plan_.islands;
  };
  while (is_complete(next_report_ + ready)) {
    ++ready;
  }
  StepTimes times = times_;
  times.step = now_seconds() - last_report_;
  for (std::int64_t i = 0; i < ready; ++i) {
    hooks.report(result_of(next_report_, divided(times, ready)));
    const Due due = hooks.due(next_report_ + 1);
    add(due.save, kSaves);
    add(due.evaluation, kEvaluates);
    open_steps_.erase(next_report_++);
  }
  if (ready > 0) {
    times_ = {};
    last_report_ = now_seconds();
  }
  return flags;
}

void AsyncWorkers::decide(const Hooks& hooks) {
  Word flags = report_steps(hooks);
  const auto add = [&flags](bool given, Word flag) { flags |= given ? flag : Word{0}; };
  for (std::int64_t r = 0; r < world_.size(); ++r) {
    add(control_->load_own(kAsked + r) != 0, kStops);
  }
  add(hooks.wants_save(), kSaves);
  // A checkpoint of a longer run has more.
  add(done_count_ >= std::max(units_, begun_.next), kEnds);
  if (flags != 0) {
    control_->store_own(kCut, (control_->load_own(kCut) / kFlagEnd + 1) * kFlagEnd + flags);
  }
}

AsyncWorkers::Cut AsyncWorkers::work(const Hooks& hooks) {
  progressed_ = now_seconds();
  while (true) {
    server_.require_serving();
    if (hooks.wants_stop()) {
      control_->store(0, kAsked + world_.rank(), 1);
    }
    if (world_.rank() == 0) {
      decide(hooks);
    }
    if (control_->load(0, kCut) != cuts_seen_) {
      return cut(hooks);
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

AsyncWorkers::Cut AsyncWorkers::cut(const Hooks& hooks) {
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
    flags |= report_steps(hooks);
    for (const auto& [step, units] : open_steps_) {
      for (const auto& [lane, unit] : units) {
        done_.results.push_back(unit);
      }
    }
  }
  std::vector<std::int64_t> agreed{static_cast<std::int64_t>(flags), next_report_};
  world_.broadcast(comm::payload_of(std::span(agreed)), 0);
  flags = static_cast<Word>(agreed[0]);
  const Cut cut{.stops = (flags & kStops) != 0,
                .saves = (flags & kSaves) != 0,
                .evaluates = (flags & kEvaluates) != 0,
                .ends = (flags & kEnds) != 0,
                .step = agreed[1]};
  show_step(cut.step);
  fetch();
  return cut;
}

void AsyncWorkers::require_finite() const {
  for (const optim::OwnedPiece& piece : server_.pieces()) {
    with_floating(server_.master(piece).dtype(), [&]<typename T>(T) {
      const std::span<const T> weights = ConstTensorView(server_.master(piece)).host<T>();
      if (!std::ranges::all_of(weights, [](T weight) { return std::isfinite(weight); })) {
        fail(
            ExitCode::kDiverged,
            "the run diverged: {} holds numbers that are not finite; no checkpoint is written, and "
            "the last good one is kept. Lower optimizer.learning_rate, set optimizer.clip_norm or "
            "async.staleness",
            state_.spec_of(piece).name);
      }
    });
  }
}

std::vector<io::TensorSlice> AsyncWorkers::snapshot(const device::Buffer& memory) {
  std::vector<io::TensorSlice> all;
  const auto add = [&](const std::string& name, const optim::OwnedPiece& piece,
                       const TensorView& data) {
    if (auto slice = state_.slice_of(name, piece, data)) {
      all.push_back(std::move(*slice));
    }
  };
  for (const optim::OwnedPiece& piece : server_.pieces()) {
    const nn::ParameterSpec& spec = state_.spec_of(piece);
    add(weight_name(spec), piece, server_.master(piece));
    const std::vector<std::string> names = state_names(spec, plan_.config.optimizer.options);
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

void AsyncWorkers::stop() {
  server_.stop();
  control_->close();
}

std::string AsyncWorkers::summary() {
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
