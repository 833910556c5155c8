#include "replication/island_directory.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/hash.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/config_changes.hpp"

namespace strata::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStart = "start";
constexpr const char* kChecksum = "checksum";
constexpr const char* kIslands = "islands";

/// What islands that are jobs of their own must have in common.
nlohmann::json shared_identity(const plan::Plan& plan) {
  nlohmann::json identity = identity_in_parts(plan);
  const auto& local = plan.config.local;
  identity["parallel.islands"] = plan.parts;
  identity["local.steps"] = local.steps;
  identity["local.outer_rate"] = local.outer_rate;
  identity["local.outer_momentum"] = local.outer_momentum;
  return identity;
}

/// The text of islands.json, with the checksum of the rest.
std::string sealed(nlohmann::json islands) {
  const auto text = [&](int indent) {  // invalid UTF-8, as in a path, is replaced
    return islands.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  islands.erase(kChecksum);
  islands[kChecksum] = hash_text(hash_of(text(-1)));
  return text(2) + "\n";
}

/// islands.json; nothing where there is none.
std::optional<nlohmann::json> read_islands(const fs::path& directory) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 26U;
  const fs::path path = directory / kIslandsFile;
  const auto text = io::read_text(path, ExitCode::kUsage, kMostBytes);
  if (!text) {
    return std::nullopt;
  }
  auto islands = io::parse_json(*text);
  if (!islands || !islands->is_object() || sealed(*islands) != *text) {
    fail(ExitCode::kUsage,
         "{} is damaged or of an earlier version; remove it, and the next island that continues "
         "writes it again and local.record goes without it, or choose another directory",
         path.string());
  }
  return islands;
}

void compare_settings(const nlohmann::json& islands, const fs::path& directory,
                      const plan::Plan& plan, const char* setting) {
  const nlohmann::json identity = shared_identity(plan);
  for (const auto& [key, value] : identity.items()) {
    const nlohmann::json there = islands.value(key, nlohmann::json());
    if (there != value) {
      fail(ExitCode::kUsage,
           "{}: {} is of a run where {} is {}, here it is {}; all islands need the same, or "
           "another directory",
           setting, directory.string(), key, there.dump(), value.dump());
    }
  }
}

}  // namespace

std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string run_text(const std::string& id) {
  return id.empty() ? "an earlier version" : "the run " + id;
}

fs::path island_root(const fs::path& directory, std::int64_t island) {
  return directory / fmt::format("island-{}", island);
}

fs::path committed_at(const fs::path& root, std::int64_t step) {
  const std::vector<io::CheckpointEntry> entries = io::list_checkpoints(root);
  const auto found = std::ranges::find(entries, step, &io::CheckpointEntry::step);
  return found != entries.end() ? found->directory : fs::path();
}

void prune_rounds(const fs::path& root, std::int64_t step) {
  constexpr std::int64_t kKept = 4;
  try {
    io::prune_checkpoints(root, step, kKept);
  } catch (const Error&) {
    return;  // another island has deleted them, or the next one will
  }
}

std::vector<IslandRound> rounds_of(const io::Checkpoint& outer) {
  std::vector<IslandRound> rounds;
  try {
    for (const nlohmann::json& round : outer.metadata().at(kRounds)) {
      rounds.push_back({.step = round.at(kStep).get<std::int64_t>(),
                        .islands = round.at(kIslands).get<std::vector<std::int64_t>>()});
    }
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::kCheckpoint, "{} has no valid record of its rounds ({})",
         outer.directory().string(), error.what());
  }
  return rounds;
}

nlohmann::json json_of(const std::vector<IslandRound>& rounds) {
  nlohmann::json record = nlohmann::json::array();
  for (const IslandRound& round : rounds) {
    record.push_back({{kStep, round.step}, {kIslands, round.islands}});
  }
  return record;
}

std::vector<IslandRound> island_rounds(const fs::path& directory) {
  const auto newest = io::list_checkpoints(directory / kRounds);
  return newest.empty() ? std::vector<IslandRound>()
                        : rounds_of(io::Checkpoint::open(newest.front().directory));
}

bool holds(const std::vector<IslandRound>& rounds, std::int64_t step, std::int64_t island) {
  return std::ranges::any_of(rounds, [&](const IslandRound& round) {
    return round.step == step && std::ranges::count(round.islands, island) > 0;
  });
}

void create_islands_file(const fs::path& directory, const plan::Plan& plan,
                         const IslandsStart& start, const std::string& run) {
  if (read_islands(directory)) {
    return;
  }
  nlohmann::json islands = shared_identity(plan);
  islands[kMeeting] = run.empty() ? io::make_nonce() : run;
  islands[kStart] = {{kStep, start.step}, {kWeights, start.weights}};
  islands[kConfigText] = start.config_text;
  static_cast<void>(io::create_text(directory / kIslandsFile, sealed(std::move(islands))));
}

void require_same_settings(const fs::path& directory, const plan::Plan& plan, const char* setting) {
  if (const auto islands = read_islands(directory)) {
    compare_settings(*islands, directory, plan, setting);
  }
}

std::string require_same_run(const fs::path& directory, const plan::Plan& plan,
                             const IslandsStart& start, const char* setting, Log& log) {
  const std::optional<nlohmann::json> islands = read_islands(directory);
  if (!islands) {
    log.warn("{}: {} has no {}, so this run is not compared with the one that made it", setting,
             directory.string(), kIslandsFile);
    return "";
  }
  compare_settings(*islands, directory, plan, setting);
  const nlohmann::json first = islands->value(kStart, nlohmann::json::object());
  if (first.value(kStep, std::int64_t{-1}) == start.step &&
      text_at(first, kWeights) != start.weights) {
    fail(ExitCode::kUsage,
         "{}: the islands of {} begin from weights whose hash after step {} is {}, here it is {}; "
         "give all of them the same checkpoint.init, or choose another directory",
         setting, directory.string(), start.step, text_at(first, kWeights), start.weights);
  }
  const std::vector<std::string> changes =
      training_changes(text_at(*islands, kConfigText), start.config_text);
  if (!changes.empty()) {
    log.warn("{}: settings of the island that made {}, which may differ, and those here: {}",
             setting, (directory / kIslandsFile).string(), fmt::join(changes, "; "));
  }
  return text_at(*islands, kMeeting);
}

}  // namespace strata::train
