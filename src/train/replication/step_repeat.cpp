#include "replication/step_repeat.hpp"

#include <array>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/hash.hpp"

#include "replication/replica_check.hpp"

namespace strata::train {
namespace {

using Field = std::function<std::uint64_t(const RunHashes&)>;

/// Adds the suspects among the ranks that computed `part`, the lanes or the slice of a data rank,
/// in one stage. Returns: whether the runs differ.
bool add_suspects(std::set<std::int64_t>& suspects, const grid::Grid& grid,
                  std::span<const StepRun> runs, const Field& field, std::int64_t part,
                  std::int64_t stage) {
  bool differ = false;
  for (std::int64_t shard = 0; shard < grid.tensor; ++shard) {
    std::vector<std::int64_t> members;
    std::vector<std::uint64_t> values;
    for (const StepRun& run : runs) {
      const std::int64_t replica = (part + grid.data - run.shift % grid.data) % grid.data;
      members.push_back(grid.rank_of({replica, stage, shard}));
      values.push_back(field(run.ranks[static_cast<std::size_t>(members.back())]));
    }
    const std::vector<std::int64_t> odd = suspects_of(members, values);
    differ = differ || !odd.empty();
    suspects.insert(odd.begin(), odd.end());
  }
  return differ;
}

std::uint64_t hash_of_summary(const StepSummary& summary) {
  const double numbers[] = {summary.loss, summary.grad_norm};
  return hash_of(std::as_bytes(std::span(numbers)));
}

/// Hashes activations, gradients and losses while it exists.
class Recording {
 public:
  Recording(RankState& state, pipeline::Executor& executor, device::Stream& stream)
      : state_(state), executor_(executor) {
    executor.observe_sends(
        [this, &stream](const ConstTensorView& tensor, comm::Tag kind, std::int64_t chunk) {
          auto& hashes = kind == comm::Tag::kActivation ? forward_ : backward_;
          timed([&] { add_to(hashes[static_cast<std::size_t>(chunk)], tensor, stream); });
        });
    state.reducer().observe_sums(
        [this, &stream](const optim::Bucket& bucket, std::span<const TensorView> partials) {
          for (const TensorView& partial : partials) {
            timed([&] { add_to(backward_[chunk_of(bucket)], partial, stream); });
          }
        });
  }
  ~Recording() {
    executor_.observe_sends({});
    state_.reducer().observe_sums({});
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  [[nodiscard]] RunHashes hashes(const StepSummary& summary) {
    RunHashes hashes{.summary = hash_of_summary(summary)};
    timed([&] {
      for (const nn::MicrobatchLoss& sums : state_.losses()) {
        forward_[state_.chunks().size() - 1].update(std::as_bytes(std::span(&sums.loss, 1)));
      }
      hashes.sums = state_.sums_hash();
    });
    for (std::size_t c = 0; c < forward_.size(); ++c) {
      hashes.forward[c] = forward_[c].digest();
      hashes.backward[c] = backward_[c].digest();
    }
    return hashes;
  }
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  [[nodiscard]] std::size_t chunk_of(const optim::Bucket& bucket) {
    std::size_t chunk = 0;
    while (bucket.ready_layer >= state_.chunks()[chunk]->layers().end) {
      ++chunk;
    }
    return chunk;
  }

  template <typename Work>
  void timed(const Work& work) {
    const double begin = now_seconds();
    work();
    seconds_ += now_seconds() - begin;
  }

  RankState& state_;
  pipeline::Executor& executor_;
  std::array<StreamingHash, pipeline::kMostChunks> forward_;
  std::array<StreamingHash, pipeline::kMostChunks> backward_;
  double seconds_ = 0.0;
};

}  // namespace

std::vector<std::int64_t> suspects_among(const grid::Grid& grid, const pipeline::ChunkOrder& order,
                                         std::span<const StepRun> runs) {
  std::set<std::int64_t> suspects;
  const auto add = [&](const Field& field, std::int64_t part, std::int64_t stage) {
    return add_suspects(suspects, grid, runs, field, part, stage);
  };
  for (std::int64_t part = 0; part < grid.data; ++part) {
    bool found = false;
    const auto look = [&](const pipeline::StageChunk& at, auto field) {
      const auto chunk = static_cast<std::size_t>(at.chunk);
      found =
          found || add([&](const RunHashes& run) { return (run.*field)[chunk]; }, part, at.stage);
    };
    for (const pipeline::StageChunk& at : order.chunks()) {
      look(at, &RunHashes::forward);
    }
    for (auto at = order.chunks().rbegin(); at != order.chunks().rend(); ++at) {
      look(*at, &RunHashes::backward);
    }
  }
  // From the last chunk: a borrowed table's gradients go from there to the first.
  for (const Field field : {&RunHashes::sums, &RunHashes::summary}) {
    for (auto at = order.chunks().rbegin(); at != order.chunks().rend(); ++at) {
      if (!suspects.empty()) {
        break;
      }
      for (std::int64_t part = 0; part < grid.data; ++part) {
        add(field, part, at->stage);
      }
    }
  }
  return {suspects.begin(), suspects.end()};
}

StepRepeat::StepRepeat(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
                       pipeline::Executor& executor, std::int64_t first_step)
    : setup_(setup),
      rank_(rank),
      state_(state),
      executor_(executor),
      last_time_(now_seconds()),
      last_step_(first_step) {}

bool StepRepeat::is_wanted(std::int64_t step) const {
  constexpr std::int64_t kSteps = 200;
  constexpr double kShareOfTime = 0.01;
  return setup_.groups.world->rank() == 0 && plan::repeats_steps(setup_.plan) &&
         !setup_.plan.config.train.repeat_every && step - last_step_ >= kSteps &&
         last_seconds_ <= kShareOfTime * (now_seconds() - last_time_);
}

bool StepRepeat::is_due(std::int64_t step) const {
  const std::optional<std::int64_t>& every = setup_.plan.config.train.repeat_every;
  return plan::repeats_steps(setup_.plan) && (every ? step % *every == 0 : step == asked_step_);
}

StepSummary StepRepeat::run(std::int64_t step, SampleFeed& feed,
                            const std::function<StepSummary()>& own, const Compute& again) {
  const double begin = now_seconds();
  last_step_ = step;
  std::vector<StepRun> runs{shifted(step, 1, feed, again)};
  last_seconds_ = now_seconds() - begin;
  runs.push_back(recorded(step, 0, own));
  last_seconds_ += runs[1].hashing_seconds;
  seconds_ += last_seconds_;
  last_time_ = now_seconds();
  ++steps_;
  const bool same_failure = !is_finite(runs[0].summary) && !is_finite(runs[1].summary);
  if (!same_failure && !suspects(runs).empty()) {
    runs.push_back(shifted(step, 2, feed, again));
    end(step, runs);
  }
  return runs[1].summary;
}

StepRun StepRepeat::shifted(std::int64_t step, std::int64_t shift, SampleFeed& feed,
                            const Compute& again) {
  const grid::Grid& grid = setup_.groups.grid;
  if (shift % grid.data == 0) {
    return recorded(step, 0, [&] { return again(rank_, feed); });
  }
  grid::Coordinates place = rank_.coordinates;
  place.data = (place.data + shift) % grid.data;
  const plan::RankPlan other = plan::rank_plan(setup_.plan, grid.rank_of(place));
  state_.drain();
  SampleFeed samples(setup_.context, setup_.train_data, other,
                     plan::repeat_loader(setup_.plan, other, step));
  samples.next();
  state_.assign(shift);
  StepRun result = recorded(step, shift, [&] { return again(other, samples); });
  state_.assign(0);
  return result;
}

StepRun StepRepeat::recorded(std::int64_t step, std::int64_t shift,
                             const std::function<StepSummary()>& compute) {
  setup_.hooks.step(StepPoint::kRepeating, step, state_);
  Recording recording(state_, executor_, setup_.context.stream());
  StepRun result{.shift = shift, .ranks = {}, .summary = compute()};
  const RunHashes mine = recording.hashes(result.summary);
  result.hashing_seconds = recording.seconds();
  setup_.hooks.step(StepPoint::kRepeated, step, state_);
  result.ranks = comm::gathered(*setup_.groups.world, mine);
  return result;
}

std::vector<std::int64_t> StepRepeat::suspects(std::span<const StepRun> runs) const {
  return suspects_among(setup_.groups.grid, setup_.plan.training.order, runs);
}

void StepRepeat::end(std::int64_t step, std::span<const StepRun> runs) {
  end_corrupt(
      setup_.groups, suspects(runs),
      fmt::format("step {}, computed {}, gave other numbers", step,
                  setup_.groups.grid.data == 1 ? "again on the same ranks"
                                               : "again on another assignment of lanes to ranks"));
}

}  // namespace strata::train
