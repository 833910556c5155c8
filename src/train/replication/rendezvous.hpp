#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "strata/io/checkpoint.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/optim/outer_optimizer.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/setup.hpp"
#include "strata/train/stop_signal.hpp"

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

/// A hash of the outer weights and momentum and of frozen matrices, the same on every grid.
/// `islands_rank`: this rank's islands coordinate. Communication: collective over the world.
[[nodiscard]] std::string start_hash(comm::Communicator& world, const RankState& state,
                                     const optim::OuterOptimizer& outer, device::Stream& stream,
                                     std::int64_t islands_rank);

/// Compares a run, and its start_hash() after `step`, with islands.json of a directory of islands;
/// a warning lists other settings that differ. `setting` begins the messages. Returns: the run's
/// id of the run; empty, with a warning, where there is no file. Throws: Error(kUsage)
/// naming what differs.
std::string require_same_run(const std::filesystem::path& directory, const plan::Plan& plan,
                             std::int64_t step, const std::string& weights,
                             const std::string& config_text, const char* setting, Log& log);

/// What became of an island's difference at the end of a round.
struct RoundOutcome {
  enum class Kind {
    kIncluded,  ///< the round has it
    kExcluded,  ///< it does not, or the round is a later one
    kStopped    ///< on request, while others were waited for
  };
  Kind kind = Kind::kIncluded;
  std::int64_t step = 0;  ///< after which the island goes on
};

/// Where islands that are jobs of their own synchronize at the end of a round: a shared directory.
/// Each job writes the differences of its weights as a checkpoint, which one rename commits. The
/// job that sees those of all islands, or whose deadline is over, adds what is there in island
/// order, applies the outer optimizer and commits the outer weights; the first rename counts. A job
/// that was left out goes on with the newest round. All that is read is verified, and must be of
/// the same run and from the same outer weights; what is not is left out. Formats: docs/formats.md.
class IslandRendezvous {
 public:
  /// Creates the directory where it is missing. Communication: collective over the world.
  /// Throws: AgreedError(kUsage) where it is of another run, or another job is this island.
  IslandRendezvous(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
                   optim::OuterOptimizer& outer);

  /// Exchanges the round that ends with `step` and brings the outer optimizer to the state of the
  /// round that the island goes on from. Communication: collective over the world.
  [[nodiscard]] RoundOutcome synchronize(std::int64_t step,
                                         const std::function<StopRequest()>& stop_request);
  /// At a start after `step`, with the weights loaded: the newest round where the others have gone
  /// on without this island. Communication: collective over the world.
  [[nodiscard]] RoundOutcome join(std::int64_t step);
  /// The random id of the run that the islands belong to, which its first job makes, as metadata
  /// of a checkpoint. After join().
  [[nodiscard]] nlohmann::json record() const;

 private:
  /// The contents of an island's lock and when they were first seen.
  struct Heartbeat {
    std::string text;
    double changed = 0.0;
  };

  /// Of a round.
  enum class Progress {
    kIncomplete,
    kComplete,  ///< all differences are there that are waited for
    kAveraged
  };

  /// The id, on rank 0; writes islands.json where there is none.
  [[nodiscard]] std::string identify(std::int64_t step, const std::string& weights);
  /// Refuses differences of a run of this island that began with other settings: others may
  /// average them before this one has written its own.
  void require_no_other_start() const;
  [[nodiscard]] RoundOutcome outcome_at_start(std::int64_t step, const std::string& outer);
  /// Nothing where the round was damaged and is set aside.
  [[nodiscard]] std::optional<RoundOutcome> catch_up(std::int64_t step);
  [[nodiscard]] Progress progress_of(std::int64_t step, double committed);
  /// Whether an island's job holds its lock, by the heartbeat; waited for until the deadline.
  [[nodiscard]] bool is_alive(std::int64_t island);
  /// Of the outer weights and momentum. Communication: collective over the world.
  [[nodiscard]] std::string outer_hash();
  /// The newest record that is good, on rank 0; moves damaged rounds away.
  [[nodiscard]] std::vector<IslandRound> rounds();
  /// Nothing where it is damaged and moved away. Throws: Error(kUsage) for another run's.
  [[nodiscard]] std::optional<io::Checkpoint> open_round(const std::filesystem::path& round);
  /// Moves a damaged round away, unless another one than `inode` is in its place.
  void set_aside(const std::filesystem::path& round, std::uint64_t inode,
                 const std::string& problem);
  void write_differences(std::int64_t step);
  /// Whether this island's difference is there already, from an earlier start.
  [[nodiscard]] bool continues_difference(std::int64_t step);
  /// Verifies an island's difference and adds it to differences_; returns what is wrong with it.
  [[nodiscard]] std::string open_difference(std::int64_t island, std::int64_t step);
  /// False where one that is present is bad: the own one is written again, others are awaited.
  [[nodiscard]] bool verify_differences(std::int64_t step);
  void average(std::int64_t step);
  /// False where the round was damaged and is set aside, or is not there.
  [[nodiscard]] bool load(std::int64_t step);
  /// Says where islands are missing in an average, or are back.
  void report(const IslandRound& round);
  /// Writes and commits a checkpoint. Communication: collective over the world.
  void write(const std::filesystem::path& root, std::int64_t step,
             const std::vector<io::TensorSlice>& slices, nlohmann::json metadata);
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
  std::string id_;
  std::string base_;                                    ///< outer_hash() of the round's beginning
  std::vector<std::int64_t> present_;                   ///< of the average to make
  std::map<std::int64_t, io::Checkpoint> differences_;  ///< that were verified in this round
  /// When those that were found bad were written, on rank 0.
  std::map<std::int64_t, std::filesystem::file_time_type> bad_;
  bool rewrote_ = false;
  std::vector<std::int64_t> averaged_;  ///< the islands of the last average, on rank 0
};

}  // namespace strata::train
