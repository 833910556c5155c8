#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "strata/grid/grid.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/setup.hpp"
#include "strata/train/step_summary.hpp"

#include "replication/sample_feed.hpp"

namespace strata::train {

/// Hashes of what one rank computed in one run of a step.
struct RunHashes {
  /// Of each chunk: the activations that it hands on; of the last the losses.
  std::array<std::uint64_t, pipeline::kMostChunks> forward{};
  /// Of each chunk: the own lanes' weight gradients, and the gradients that it hands on.
  std::array<std::uint64_t, pipeline::kMostChunks> backward{};
  std::uint64_t sums = 0;     ///< the own slices of the gradients reduced over all lanes
  std::uint64_t summary = 0;  ///< loss and gradient norm
};

/// One run of a step: data rank d computes the lanes of data rank (d + shift) mod D.
struct StepRun {
  std::int64_t shift = 0;
  std::vector<RunHashes> ranks;  ///< in order of the world
  StepSummary summary;
  double hashing_seconds = 0.0;  ///< on this rank
};

/// The ranks that may have computed a wrong number, in ascending order; none where all runs have
/// the same bits. Follows the data flow through the stages to the first difference, where the ranks
/// without the majority of the runs are suspects, or all ranks that computed these lanes. `order`:
/// the chunks of the stages.
[[nodiscard]] std::vector<std::int64_t> suspects_among(const grid::Grid& grid,
                                                       const pipeline::ChunkOrder& order,
                                                       std::span<const StepRun> runs);

/// Finds wrong results of a rank's arithmetic: computes a step twice, first with every rank on the
/// lanes of the next data rank, then on its own lanes, and compares the bits (design law 1).
class StepRepeat {
 public:
  StepRepeat(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
             pipeline::Executor& executor, std::int64_t first_step);

  /// Whether rank 0 wants `step` repeated, where train.repeat_every is auto; decided from what the
  /// last repeat took.
  [[nodiscard]] bool is_wanted(std::int64_t step) const;
  /// All ranks ask for the same step.
  void ask(std::int64_t step) { asked_step_ = step; }
  /// Whether `step` is repeated; the same on all ranks.
  [[nodiscard]] bool is_due(std::int64_t step) const;

  /// Computes the gradients of a step on the lanes of `rank`, whose samples `feed` has.
  using Compute = std::function<StepSummary(const plan::RankPlan& rank, SampleFeed& feed)>;

  /// Computes the step on other lanes by `again`, then by `own` on the own lanes, which `feed` has,
  /// and leaves the gradients of the second run. Where they differ, runs it a third time; not where
  /// both have a loss or a norm that is not finite, because the bits of NaN depend on the order of
  /// operands.
  /// Communication: that of the runs, and an all-gather over the world after each.
  /// Throws: AgreedError(kPeer) that names the suspects.
  [[nodiscard]] StepSummary run(std::int64_t step, SampleFeed& feed,
                                const std::function<StepSummary()>& own, const Compute& again);

  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// Seconds that the first runs and the hashes of the second ones took on this rank.
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  /// Computes the step with a shift; `feed` has the samples of the own lanes.
  [[nodiscard]] StepRun shifted(std::int64_t step, std::int64_t shift, SampleFeed& feed,
                                const Compute& again);
  /// Hashes what `compute` does.
  [[nodiscard]] StepRun recorded(std::int64_t step, std::int64_t shift,
                                 const std::function<StepSummary()>& compute);
  [[nodiscard]] std::vector<std::int64_t> suspects(std::span<const StepRun> runs) const;
  [[noreturn]] void end(std::int64_t step, std::span<const StepRun> runs);

  const TrainerSetup& setup_;
  const plan::RankPlan& rank_;
  RankState& state_;
  pipeline::Executor& executor_;
  std::int64_t steps_ = 0;
  double seconds_ = 0.0;
  double last_seconds_ = 0.0;
  double last_time_;
  std::int64_t last_step_;
  std::int64_t asked_step_ = 0;
};

}  // namespace strata::train
