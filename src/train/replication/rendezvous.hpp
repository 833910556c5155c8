#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/train/stop_signal.hpp"

#include "replication/island_directory.hpp"
#include "replication/round_differences.hpp"

namespace strata::train {

/// What became of an island's difference at the end of a round.
struct RoundOutcome {
  enum class Kind {
    kIncluded,  ///< the round has it
    kExcluded,  ///< it does not, or the round is a later one
    kStopped    ///< on request, while others were waited for
  };
  Kind kind = Kind::kIncluded;
  std::int64_t step = 0;  ///< the island continues after it
};

/// Synchronizes islands that are jobs of their own, through a shared directory. At the end of a
/// round each job commits the differences of its weights as a checkpoint. A job averages the
/// differences, in island order, once all are there or its deadline is over; then it applies the
/// outer optimizer and commits the outer weights. The first commit counts. A job that the average
/// lacks continues from the newest round. Every checkpoint that is read is verified, and left out
/// unless it is of the same run and from the same outer weights. Formats: docs/formats.md.
class IslandRendezvous {
 public:
  /// Creates the directory where it is missing. Communication: collective over the world.
  /// Throws: AgreedError(kUsage) where it is of another run, or another job is this island.
  IslandRendezvous(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
                   optim::OuterOptimizer& outer);

  /// Exchanges the round that ends with `step`, and loads the outer state of the round from which
  /// the island continues. Communication: collective over the world.
  [[nodiscard]] RoundOutcome synchronize(std::int64_t step,
                                         const std::function<StopRequest()>& stop_request);
  /// At a start after `step`, with the weights loaded: where the other islands have continued
  /// without this one, loads the newest round. Communication: collective over the world.
  [[nodiscard]] RoundOutcome join(std::int64_t step);
  /// The random id of the run that the islands belong to, which its first job makes, as metadata
  /// of a checkpoint. After join().
  [[nodiscard]] nlohmann::json record() const { return {{kMeeting, job_.id}}; }

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
  [[nodiscard]] std::string identify(const IslandsStart& start);
  /// Refuses differences of a run of this island that began with other settings: others may
  /// average them before this one has written its own.
  void require_no_other_start() const;
  [[nodiscard]] RoundOutcome outcome_at_start(std::int64_t step, const std::string& outer);
  /// Nothing where the round was damaged and is set aside.
  [[nodiscard]] std::optional<RoundOutcome> catch_up(std::int64_t step);
  /// The outcome on rank 0; its step is -1 where the newest round was damaged.
  [[nodiscard]] RoundOutcome outcome_after(std::int64_t step);
  [[nodiscard]] Progress progress_of(std::int64_t step, RoundDifferences& differences,
                                     double committed);
  /// Whether an island's job holds its lock, by the heartbeat; waited for until the deadline.
  [[nodiscard]] bool is_alive(std::int64_t island);
  /// The newest record that is good, on rank 0; moves damaged rounds away.
  [[nodiscard]] std::vector<IslandRound> rounds();
  /// Nothing where it is damaged and moved away. Throws: Error(kUsage) for another run's.
  [[nodiscard]] std::optional<io::Checkpoint> open_round(const std::filesystem::path& round);
  /// Moves a damaged round away, unless another one than `inode` is in its place.
  void set_aside(const std::filesystem::path& round, std::uint64_t inode,
                 const std::string& problem);
  /// Averages the differences and commits the outer weights.
  void average(std::int64_t step, RoundDifferences& differences);
  /// False where the round was damaged and is set aside, or is not there.
  [[nodiscard]] bool load(std::int64_t step);
  /// Says where islands are missing in an average, or are back.
  void report(const IslandRound& round);

  IslandJob job_;
  const plan::Plan& plan_;
  comm::Communicator& world_;
  Log& log_;
  std::filesystem::path own_;           ///< this island's root
  std::filesystem::path rounds_;        ///< root
  std::vector<Heartbeat> heartbeats_;   ///< of each island
  std::vector<std::int64_t> averaged_;  ///< the islands of the last average, on rank 0
};

}  // namespace strata::train
