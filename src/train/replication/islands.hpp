#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "strata/device/buffer.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/optim/outer_optimizer.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/setup.hpp"

#include "loop/step_result.hpp"
#include "replication/island_rendezvous.hpp"

namespace strata::train {

/// The islands of a rank (parallel.sync = local). Each trains by itself; a rank that holds several
/// swaps their weights and optimizer states in its RankState. Fragments of the weights are averaged
/// in turns: in each round of local.steps steps each once, the last at the round's end, where all
/// ranks also exchange losses and requests. No other messages cross islands.
class Islands {
 public:
  /// Allocates what the plan lists.
  Islands(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state);

  /// Copies the state's weights and optimizer state to all islands of a new run.
  void start();
  /// Reads the states of the own islands and of the outer optimizer. Throws: as RankState.
  void load(const io::Checkpoint& checkpoint);

  [[nodiscard]] std::int64_t own() const { return plan_.own_islands; }
  /// Brings an own island's weights and optimizer state into the RankState.
  void enter(std::int64_t own_island);
  /// Throws: as RankState::require_finite(), for the weights of all own islands.
  void require_finite();
  /// Brings the outer weights there, for an evaluation; nothing where all islands have them.
  void show_outer();

  /// Whether an own island trains at a step.
  [[nodiscard]] bool trains(std::int64_t own_island, std::int64_t step) const {
    return takes_part(rank_.first_island + own_island, step);
  }
  [[nodiscard]] bool is_round_end(std::int64_t step) const {
    return step % plan_.config.local.steps == 0;
  }
  /// Averages the fragments that are due after a step of all own islands.
  /// Communication: over the islands group. Returns: seconds spent waiting for it.
  double end_step(std::int64_t step);
  /// Where islands are jobs of their own: meets the others at the end of a round, and goes on with
  /// the outer weights. Communication: collective over the world.
  [[nodiscard]] IslandRendezvous::Met meet(std::int64_t step,
                                           const std::function<StopRequest()>& stop_request);
  /// The step after which an island that is a job begins, after `step` of its own run. Compares
  /// a replay (local.record) with what it repeats. Communication: collective over the world.
  [[nodiscard]] std::int64_t join(std::int64_t step, bool is_new);
  [[nodiscard]] bool are_jobs() const { return rendezvous_.has_value(); }
  /// IslandRendezvous::id(). Pre: are_jobs().
  [[nodiscard]] const std::string& meeting() const { return rendezvous_->id(); }

  /// Replaces losses and norms of a round's steps by the means over all islands, and the requests
  /// of the last by those of all. Communication: an all-gather over the islands group. Returns:
  /// seconds spent in it.
  double exchange(std::span<StepResult> round);

  /// What this rank writes to a checkpoint, copied to `memory`. Waits for the copies.
  [[nodiscard]] std::vector<io::TensorSlice> snapshot(const device::Buffer& memory);

 private:
  void store(std::int64_t own_island);
  void merge(std::size_t fragment);
  void go_on_from(const IslandRendezvous::Met& met);
  /// Whether an island takes part in the round of a step.
  [[nodiscard]] bool takes_part(std::int64_t island, std::int64_t step) const;
  [[nodiscard]] bool swaps() const { return !slots_.empty(); }

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  const plan::RankPlan& rank_;
  comm::Groups& groups_;
  ops::Context& context_;
  RankState& state_;
  optim::OuterOptimizer outer_;
  std::optional<IslandRendezvous> rendezvous_;  ///< parallel.island_of
  std::vector<IslandRound> rounds_;             ///< to repeat (local.record)
  /// Copies of RankState::trained_tensors(): of own islands that are not in it, or of the end of
  /// the last round where islands are jobs.
  std::vector<device::Buffer> slots_;
  std::int64_t current_ = 0;  ///< the own island in the RankState; -1: the outer weights
};

}  // namespace strata::train
