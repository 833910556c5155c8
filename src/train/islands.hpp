#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/device/buffer.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/optim/outer_optimizer.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/trainer.hpp"

#include "step_result.hpp"

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
  /// Brings the outer weights there, for an evaluation; nothing where all islands have them.
  void show_outer();

  [[nodiscard]] bool is_round_end(std::int64_t step) const {
    return step % plan_.config.local.steps == 0;
  }
  /// Averages the fragments that are due after a step of all own islands.
  /// Communication: over the islands group. Returns: seconds spent waiting for it.
  double end_step(std::int64_t step);
  /// Replaces losses and norms of a round's steps by the means over all islands, and the requests
  /// of the last by those of all. Communication: an all-gather over the islands group. Returns:
  /// seconds spent in it.
  double exchange(std::span<StepResult> round);

  /// What this rank writes to a checkpoint, copied to `memory`. Waits for the copies.
  [[nodiscard]] std::vector<io::TensorSlice> snapshot(const device::Buffer& memory);

 private:
  void store(std::int64_t own_island);
  void merge(std::size_t fragment);
  [[nodiscard]] bool swaps() const { return !slots_.empty(); }

  const plan::Plan& plan_;
  const plan::RankPlan& rank_;
  comm::Groups& groups_;
  ops::Context& context_;
  RankState& state_;
  optim::OuterOptimizer outer_;
  /// Copies of RankState::trained_tensors(); none where the RankState always holds the one island.
  std::vector<device::Buffer> slots_;
  std::int64_t current_ = 0;  ///< the own island in the RankState; -1: the outer weights
};

}  // namespace strata::train
