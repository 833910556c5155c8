#include "replication/parameter_servers.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"

namespace strata::train {
namespace {

void pause() {
  constexpr auto kPause = std::chrono::microseconds(500);
  std::this_thread::sleep_for(kPause);
}

}  // namespace

ParameterServers::ParameterServers(const TrainerSetup& setup, const plan::RankPlan& rank,
                                   RankState& state, pipeline::Executor& executor)
    : Replication(setup, rank, state, executor),
      host_(1),
      server_(world_, plan_.config.optimizer.options, plan_.config.async.options, rank.layout,
              *rank.server_buckets, plan::servers(plan_),
              compute_dtype(plan_.config.numerics.dtype)),
      window_(world_, plan_),
      steps_(setup, window_, server_),
      units_(plan_.total_steps * plan_.parts) {}

bool ParameterServers::is_worker() const {
  return world_.rank() >= plan_.config.async.servers;
}

void ParameterServers::take_weights() {
  // Both are ranges of the same parameters, divided differently.
  for (const optim::OwnedPiece& piece : server_.pieces()) {
    for (const optim::OwnedPiece& from : state_.owned().pieces()) {
      const std::int64_t begin = std::max(piece.range.begin, from.range.begin);
      const std::int64_t end = std::min(piece.range.end, from.range.end);
      if (from.parameter == piece.parameter && begin < end) {
        device::copy_tensor(
            state_.owned().master(from).flat_slice(begin - from.range.begin, end - begin),
            server_.master(piece).flat_slice(begin - piece.range.begin, end - begin));
      }
    }
  }
}

void ParameterServers::load(const io::Checkpoint* checkpoint) {
  if (checkpoint == nullptr) {
    take_weights();
    return;
  }
  state_.load_weights(*checkpoint);
  for_tensors([&](const std::string& name, const optim::OwnedPiece& piece,
                  const TensorView& tensor) { state_.read(*checkpoint, name, piece, tensor); });
}

template <typename Use>
void ParameterServers::for_tensors(const Use& use) const {
  for (const optim::OwnedPiece& piece : server_.pieces()) {
    const nn::ParameterSpec& spec = state_.spec_of(piece);
    use(plan::weight_name(spec), piece, server_.master(piece));
    const std::vector<std::string> names = plan::state_names(spec, plan_.config.optimizer.options);
    for (std::size_t i = 0; i < names.size(); ++i) {
      use(names[i], piece, server_.state(i, piece));
    }
  }
}

std::int64_t ParameterServers::start(std::int64_t step) {
  if (setup_.checkpoint != nullptr) {
    begun_ = units_in(*setup_.checkpoint, plan_);
  }
  if (setup_.train_data.mixture() != nullptr) {
    setup_.log.info(
        "with parallel.sync = async the metrics have no training loss of each data set in "
        "data.train, only that of all");
  }
  steps_.begin(step, begun_);
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
  const auto unit = unit_of(window_.claim());
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
  const std::vector<Word> done = window_.done();
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
  const double begin = now_seconds();
  while (true) {
    const std::vector<Word> done = window_.done();
    const Word mine = done[static_cast<std::size_t>(world_.rank())];
    const auto first = done.begin() + plan_.config.async.servers;
    const Word least = *std::min_element(first, done.end());
    // Who finds no unit any more does not catch up.
    const bool none_left = !unit_of(window_.claims());
    if (mine < least + static_cast<Word>(bound) || none_left || window_.cut() != cuts_seen_) {
      break;
    }
    require_progress();
    if (world_.rank() == 0) {
      steps_.collect();  // the slowest may need a place in the ring
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
    const TensorView sums = state_.reducer().sums();
    server_.push(
        [&](const optim::OwnedPiece& piece, const TensorView& into) {
          const device::HostView gradient(sums.flat_slice(piece.arena_offset, into.count()),
                                          setup_.context.stream());
          device::copy_tensor(gradient.view(), into);
        },
        optim::learning_rate(plan_.config.schedule, step),
        gradient_scale(summary, plan_.config.optimizer.clip_norm));
    times_.communication.of(grid::Axis::kIslands) += now_seconds() - begin;
  }
  give({.unit = unit, .loss = summary.loss, .grad_norm = summary.grad_norm});
}

void ParameterServers::give(const UnitResult& result) {
  // Rank 0 may be behind by the whole ring.
  while (!window_.has_place()) {
    require_progress();
    if (world_.rank() == 0) {
      steps_.collect();
    } else {
      pause();
    }
  }
  window_.give(result);
}

void ParameterServers::decide(TrainingLoop& loop, StepRequests own) {
  StepRequests wanted = steps_.report(loop, times_);
  if (window_.is_asked_to_stop()) {
    wanted.add(StepRequest::kStop);
  }
  if (own.has(StepRequest::kSave)) {
    wanted.add(StepRequest::kSave);
  }
  // A checkpoint of a longer run has more.
  const bool ends = steps_.units_done() >= std::max(units_, begun_.next);
  const Word flags = static_cast<Word>(wanted.encoded()) + (ends ? UnitWindow::kEnds : 0);
  if (flags != 0) {
    window_.ask_for_cut(flags);
  }
}

AgreedPoint ParameterServers::advance(TrainingLoop& loop) {
  if (!std::exchange(serves_, true)) {
    steps_.begin_window();
    server_.start(begun_.updates);
  }
  progressed_ = now_seconds();
  while (true) {
    server_.require_serving();
    const StepRequests own = loop.requests(steps_.reported() + 1);
    if (own.has(StepRequest::kStop)) {
      window_.ask_to_stop();
    }
    if (world_.rank() == 0) {
      decide(loop, own);
    }
    if (window_.cut() != cuts_seen_) {
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
    claim();  // its samples are read while this unit is computed
    compute(now.unit, *now.feed);
  }
}

AgreedPoint ParameterServers::cut(TrainingLoop& loop) {
  server_.finish_pushes();
  world_.barrier();
  cuts_seen_ = window_.cut();
  // All claims and results are in.
  const std::int64_t mine = next_ ? next_->unit : -1;
  const std::vector<std::int64_t> held = comm::gathered(world_, mine);
  const std::int64_t claims = window_.claims();
  const std::int64_t first = std::min(claims, std::ssize(begun_.open));
  done_ = {.next = std::min(std::max(units_, begun_.next), begun_.next + claims - first),
           .open = {begun_.open.begin() + first, begun_.open.end()},
           .updates = server_.updates()};
  std::ranges::copy_if(held, std::back_inserter(done_.open),
                       [](std::int64_t unit) { return unit >= 0; });
  std::ranges::sort(done_.open);
  struct Agreed {
    std::int64_t step = 0;
    Word flags = 0;
  } agreed{.flags = cuts_seen_ % UnitWindow::kFlagEnd};
  if (world_.rank() == 0) {
    agreed.flags |= static_cast<Word>(steps_.report(loop, times_).encoded());
    agreed.step = steps_.reported();
    done_.results = steps_.open_results();
  }
  agreed = comm::broadcast_from(world_, agreed);
  AgreedPoint point{.step = agreed.step,
                    .updates = done_.updates,
                    .ends = (agreed.flags & UnitWindow::kEnds) != 0};
  point.requests.add_encoded(static_cast<double>(agreed.flags % UnitWindow::kEnds));
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
  for_tensors([&](const std::string& name, const optim::OwnedPiece& piece,
                  const TensorView& tensor) { state_.add_slice(all, name, piece, tensor); });
  if (rank_.coordinates.islands == 0) {
    state_.add_frozen(all, memory, 0);
  }
  return all;
}

nlohmann::json ParameterServers::record() const {
  nlohmann::json record = record_of(done_);
  record["reproducible"] = plan::replication_of(plan_).traits(plan_).reproducible();
  return record;
}

void ParameterServers::stop() {
  if (!serves_) {
    return;
  }
  setup_.log.info("{}", summary());
  server_.stop();
  window_.close();
}

std::string ParameterServers::summary() {
  const optim::ParameterServer::Counts counts = server_.counts();
  using Numbers = std::array<std::int64_t, 6>;
  const Numbers mine{counts.applied,      counts.scaled,          counts.dropped,
                     counts.most_applied, server_.pushed_bytes(), server_.rereads()};
  const std::vector<Numbers> all = comm::gathered(world_, mine);
  Numbers sums{};
  std::int64_t most = 0;
  for (const Numbers& rank : all) {
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
