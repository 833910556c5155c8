#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/core/log.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/plan/plan.hpp"

// The files of a directory of islands (parallel.island_of). Formats: docs/formats.md.
namespace strata::train {

inline constexpr const char* kIslandsFile = "islands.json";
/// Keys of islands.json and of the metadata of differences and rounds.
inline constexpr const char* kMeeting = "meeting";  ///< the run's id
inline constexpr const char* kStep = "step";
inline constexpr const char* kWeights = "weights";  ///< a hash
inline constexpr const char* kConfigText = "config";
inline constexpr const char* kRounds = "rounds";

/// A text of a JSON object; empty where it has none.
[[nodiscard]] std::string text_at(const nlohmann::json& object, const char* key);

/// The run of an id, in a message.
[[nodiscard]] std::string run_text(const std::string& id);

/// Where an island has its differences and its lock.
[[nodiscard]] std::filesystem::path island_root(const std::filesystem::path& directory,
                                                std::int64_t island);
/// The directory of the committed checkpoint of a step; empty where there is none.
[[nodiscard]] std::filesystem::path committed_at(const std::filesystem::path& root,
                                                 std::int64_t step);
/// Deletes checkpoints that no island needs any more: one that was killed goes back by two rounds.
void prune_rounds(const std::filesystem::path& root, std::int64_t step);

/// A finished round and the islands whose differences its average has.
struct IslandRound {
  std::int64_t step = 0;  ///< its last
  std::vector<std::int64_t> islands;
};

/// The record of rounds in the metadata of an outer checkpoint. Throws: Error(kCheckpoint).
[[nodiscard]] std::vector<IslandRound> rounds_of(const io::Checkpoint& outer);
[[nodiscard]] nlohmann::json json_of(const std::vector<IslandRound>& rounds);
/// The newest record in a directory of islands; empty where no round is finished.
/// Throws: Error(kCheckpoint) where it cannot be read.
[[nodiscard]] std::vector<IslandRound> island_rounds(const std::filesystem::path& directory);
[[nodiscard]] bool holds(const std::vector<IslandRound>& rounds, std::int64_t step,
                         std::int64_t island);

/// The first job's start.
struct IslandsStart {
  std::int64_t step = 0;
  std::string weights;  ///< start_hash() after it
  std::string config_text;
};

/// Writes islands.json where there is none, with the id `run` or, where that is empty, a new one.
/// Of several jobs that start at once, the first one wins.
void create_islands_file(const std::filesystem::path& directory, const plan::Plan& plan,
                         const IslandsStart& start, const std::string& run);
/// Compares a run with islands.json, if there is one. Throws: Error(kUsage) naming the setting that
/// differs; `setting` begins the message.
void require_same_settings(const std::filesystem::path& directory, const plan::Plan& plan,
                           const char* setting);
/// Compares its start too; a warning lists other settings that differ. Returns: the run's id;
/// empty, with a warning, where there is no file. Throws: Error(kUsage) naming what differs.
std::string require_same_run(const std::filesystem::path& directory, const plan::Plan& plan,
                             const IslandsStart& start, const char* setting, Log& log);

}  // namespace strata::train
