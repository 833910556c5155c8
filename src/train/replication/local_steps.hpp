#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/device/buffer.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/optim/outer_optimizer.hpp"
#include "strata/plan/replication.hpp"

#include "replication/rendezvous.hpp"
#include "replication/replication.hpp"

namespace strata::train {

/// Islands of replicas train by themselves (parallel.sync = local). A rank that holds several swaps
/// their weights and optimizer states in its RankState. Fragments of the weights are averaged in
/// turns: in each round of local.steps steps each once, the last at the round's end, where all
/// ranks also exchange losses and requests. No other messages cross islands.
class LocalSteps final : public Replication {
 public:
  LocalSteps(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
             pipeline::Executor& executor);

  void load(const io::Checkpoint* checkpoint) override;
  /// Where islands are jobs of their own, joins the others; compares a replay (local.record) with
  /// what it repeats.
  [[nodiscard]] std::int64_t start(std::int64_t step) override;
  /// Trains a round.
  [[nodiscard]] AgreedPoint advance(TrainingLoop& loop) override;
  /// The outer weights.
  void load_evaluation_weights() override;
  void require_good() override;
  [[nodiscard]] std::vector<io::TensorSlice> snapshot(const device::Buffer& memory) override;
  [[nodiscard]] nlohmann::json record() const override;

 private:
  [[nodiscard]] std::int64_t own() const { return plan_.parts_per_rank; }
  /// Copies the state's weights and optimizer state to all islands of a new run.
  void copy_to_islands();
  /// What the names of an own island's tensors in a checkpoint begin with.
  [[nodiscard]] std::string prefix_of(std::int64_t own_island) const {
    return plan::part_prefix(rank_.own_parts.begin + own_island);
  }
  /// Calls use(name, piece, tensor) for an own island's packing errors.
  template <typename Use>
  void for_errors(std::int64_t own_island, const Use& use) const;
  /// Brings an own island's weights and optimizer state into the RankState.
  void enter(std::int64_t own_island);
  void store(std::int64_t own_island);
  enum class Slot { kStore, kLoad };
  void copy(std::int64_t own_island, Slot to);
  [[nodiscard]] bool swaps() const { return !slots_.empty(); }
  /// Whether an island takes part in the round of a step.
  [[nodiscard]] bool takes_part(std::int64_t island, std::int64_t step) const;
  /// Whether an own island trains at a step.
  [[nodiscard]] bool trains(std::int64_t own_island, std::int64_t step) const {
    return takes_part(rank_.own_parts.begin + own_island, step);
  }
  [[nodiscard]] bool is_round_end(std::int64_t step) const {
    return step % plan_.config.local.steps == 0;
  }

  /// Trains a step of all own islands; adds their summaries to summaries_.
  void train(TrainingLoop& loop, StepResult& result);
  /// Averages the fragments that are due after a step of all own islands.
  /// Communication: over the islands group. Returns: seconds spent waiting for it.
  double average(std::int64_t step);
  /// Goes on with the outer weights, in part, in all own islands.
  void merge(std::size_t fragment);
  /// Where islands are jobs of their own: exchanges a round with them.
  void synchronize(TrainingLoop& loop, AgreedPoint& point);
  /// Goes on after the round of the others.
  void catch_up(const RoundOutcome& outcome);
  /// Replaces losses and norms of a round's steps by the means over all islands, and the requests
  /// of the last by those of all. Communication: an all-gather over the islands group.
  void exchange(std::span<StepResult> round);

  ops::Context& context_;
  optim::OuterOptimizer outer_;
  std::optional<IslandRendezvous> rendezvous_;  ///< parallel.island_of
  std::vector<IslandRound> rounds_;             ///< to repeat (local.record)
  /// Copies of RankState::trained_tensors(): of own islands that are not in it, or of the end of
  /// the last round where islands are jobs.
  std::vector<device::Buffer> slots_;
  std::int64_t current_ = 0;  ///< the own island in the RankState; -1: the outer weights
  std::vector<std::vector<StepSummary>> summaries_;  ///< of own islands, by step of the round
};

}  // namespace strata::train
