#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/io/checkpoint.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/optim/outer_optimizer.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/setup.hpp"

namespace strata::train {

/// The job of one island, on one rank.
struct IslandJob {
  const TrainerSetup& setup;
  RankState& state;
  optim::OuterOptimizer& outer;
  std::filesystem::path directory;  ///< of all islands
  std::int64_t island = 0;
  std::optional<io::DirectoryLock> lock{};  ///< of the island, on rank 0
  std::string id{};                         ///< of the run that the islands belong to

  [[nodiscard]] comm::Communicator& world() const { return *setup.groups.world; }
  /// Writes and commits a checkpoint. Communication: collective over the world.
  void write(const std::filesystem::path& root, std::int64_t step,
             const std::vector<io::TensorSlice>& slices, nlohmann::json metadata);
  /// Of the outer weights and momentum. Communication: collective over the world.
  [[nodiscard]] std::string outer_hash() const;
};

/// The differences of all islands' weights at the end of one round, as checkpoints. Those that are
/// read are verified, and must be of the same run and from the same outer weights.
class RoundDifferences {
 public:
  /// Of the round that ends with `step`. Communication: collective over the world.
  RoundDifferences(IslandJob& job, std::int64_t step)
      : job_(job), step_(step), base_(job.outer_hash()) {}

  /// Writes the own difference; not again where an earlier start has written the same.
  /// Communication: collective over the world.
  void write_own();
  /// On rank 0: islands without a difference, or with a bad one. The others are present().
  [[nodiscard]] std::vector<std::int64_t> missing();
  [[nodiscard]] const std::vector<std::int64_t>& present() const { return present_; }
  /// Verifies those that rank 0 has found present. Returns: false where one is bad; the own one is
  /// then written again, others are missing() until they are. Communication: collective over the
  /// world. Throws: AgreedError(kCheckpoint) where the own one is bad for the second time.
  [[nodiscard]] bool verify();
  /// Updates the outer optimizer with the average of those that are present.
  /// Communication: collective over the world.
  void average();
  void close_files() { opened_.clear(); }

 private:
  void write();
  /// Whether the own difference is there already.
  [[nodiscard]] bool is_written();
  /// Verifies an island's difference and adds it to opened_; returns what is wrong with it.
  [[nodiscard]] std::string open(std::int64_t island);
  [[nodiscard]] std::string name_of(const optim::OuterOptimizer::Piece& piece) const;

  IslandJob& job_;
  std::int64_t step_;
  std::string base_;                               ///< outer_hash() of the round's beginning
  std::vector<std::int64_t> present_;              ///< islands
  std::map<std::int64_t, io::Checkpoint> opened_;  ///< by island
  /// When those that were found bad were written, on rank 0.
  std::map<std::int64_t, std::filesystem::file_time_type> bad_;
  bool rewrote_ = false;
};

}  // namespace strata::train
