#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strata/io/checkpoint.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/optim/outer_optimizer.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/stop_signal.hpp"
#include "strata/train/trainer.hpp"

namespace strata::train {

/// A finished round and the islands whose differences its average has.
struct IslandRound {
  std::int64_t step = 0;  ///< its last
  std::vector<std::int64_t> islands;
};

/// The record of rounds in a directory of islands (parallel.island_of); empty where no round is
/// finished. Throws: Error(kCheckpoint) where it cannot be read.
[[nodiscard]] std::vector<IslandRound> island_rounds(const std::filesystem::path& directory);

/// The outer weights and momentum that a rank sums, in place, for a checkpoint.
[[nodiscard]] std::vector<io::TensorSlice> outer_slices(const RankState& state,
                                                        const optim::OuterOptimizer& outer);
/// Reads them for all that a rank owns. Throws: as RankState::load_weights().
void load_outer(const io::Checkpoint& checkpoint, const RankState& state,
                optim::OuterOptimizer& outer);

/// Where islands that are jobs of their own meet at the end of a round: a shared directory. Each
/// job writes the differences of its weights as a checkpoint, which one rename commits. The job
/// that sees those of all islands, or whose deadline is over, adds what is there in island order,
/// applies the outer optimizer and commits the outer weights; the first rename counts. A job that
/// was left out goes on with the newest round. Formats: docs/formats.md.
class IslandRendezvous {
 public:
  /// Creates the directory where it is missing. Communication: collective over the world.
  /// Throws: AgreedError(kUsage) where it is of another run, or another job is this island.
  IslandRendezvous(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
                   optim::OuterOptimizer& outer);

  enum class Kind {
    kTogether,  ///< the round has this island's difference
    kLeftOut,   ///< it does not, or the round is a later one
    kStopped    ///< on request, while others were waited for
  };
  struct Met {
    Kind kind = Kind::kTogether;
    std::int64_t step = 0;  ///< after which the island goes on
  };

  /// Meets the other islands after `step` and brings the outer optimizer to the state of the round
  /// that the island goes on from. Communication: collective over the world.
  [[nodiscard]] Met meet(std::int64_t step, const std::function<StopRequest()>& stop_request);
  /// At a start after `step`: the newest round where the others have gone on without this island.
  /// Communication: collective over the world.
  [[nodiscard]] Met join(std::int64_t step, bool is_new);

 private:
  /// The contents of an island's lock and when they were first seen.
  struct Heartbeat {
    std::string text;
    double changed = 0.0;
  };

  /// What rank 0 sees.
  enum class Sight { kWait, kComplete, kFinished };

  [[nodiscard]] Met go_on_after(std::int64_t step);
  [[nodiscard]] Sight look(std::int64_t step, double committed);
  /// Whether an island's job holds its lock, by the heartbeat; waited for until the deadline.
  [[nodiscard]] bool is_alive(std::int64_t island);
  void write_differences(std::int64_t step);
  void average(std::int64_t step);
  void load(std::int64_t step);
  /// Writes and commits a checkpoint. Communication: collective over the world.
  void write(const std::filesystem::path& root, std::int64_t step,
             const std::vector<io::TensorSlice>& slices, const nlohmann::json& metadata);
  [[nodiscard]] std::filesystem::path root_of(std::int64_t island) const;
  template <typename T>
  [[nodiscard]] T from_rank_0(T value);

  const TrainerSetup& setup_;
  const plan::Plan& plan_;
  comm::Communicator& world_;
  RankState& state_;
  optim::OuterOptimizer& outer_;
  std::filesystem::path directory_;
  std::filesystem::path rounds_;
  std::int64_t island_;
  std::optional<io::DirectoryLock> lock_;  ///< of this island, on rank 0
  std::vector<Heartbeat> heartbeats_;      ///< of each island
  std::vector<std::int64_t> present_;      ///< on rank 0, of the average to make
};

}  // namespace strata::train
