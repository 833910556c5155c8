#include "commands/watching/timeline_trace.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostTimelineBytes = std::int64_t{4} << 30;
constexpr std::int64_t kMostMicrobatches = std::int64_t{1} << 30;
constexpr std::int64_t kMostTracedChunks = 64;

/// The timeline of a run's directory, or the file that is named.
fs::path file_of(const fs::path& path) {
  std::error_code ignored;
  const bool directory = fs::is_directory(path, ignored);
  fs::path file = directory ? path / "timeline.json" : path;
  if (!fs::exists(file, ignored)) {
    const fs::path run = directory ? path : path.parent_path();
    const bool has_config = fs::exists(run / "config.ini", ignored);
    fail(ExitCode::kUsage,
         "{} does not exist; record steps of a run with run.timeline = FIRST-LAST, as in strata "
         "train {} --run.dir=NEW --run.timeline=5-7",
         printable_lines(file.string()),
         has_config ? printable_lines((run / "config.ini").string()) : "CONFIG.ini");
  }
  return file;
}

/// Ranks that share their coordinates are of groups of replicas, the first group's ranks first.
void number_replicas(std::map<std::int64_t, Place>& places) {
  std::int64_t replicas = 0;  // of a group
  for (const auto& [rank, at] : places) {
    replicas = std::max(replicas, at.replica + 1);
  }
  std::map<Place, std::int64_t> groups;
  for (auto& [rank, at] : places) {
    const std::int64_t group = groups[at]++;
    at.replica += group * replicas;
  }
}

}  // namespace

Trace read_trace(const std::string& path) {
  const fs::path file = file_of(path);
  std::optional<nlohmann::json> content =
      io::parse_json(io::read_input(file, kMostTimelineBytes, ExitCode::kUsage));
  Trace trace;
  const auto within = [](const nlohmann::json& value, std::int64_t most) {
    const std::optional<std::int64_t> number = io::integer_in(value);
    if (!number || *number < 0 || *number > most) {
      throw std::out_of_range(value.dump());
    }
    return *number;
  };
  const auto time_of = [](const nlohmann::json& value) {
    constexpr double kMost = 1e18;  // microseconds
    const auto time = value.get<double>();
    if (!(std::abs(time) < kMost)) {
      throw std::out_of_range(value.dump());
    }
    return time;
  };
  const auto rank_of = [&](const nlohmann::json& event) {
    return within(event.at("pid"), kMostTracedRanks);
  };
  try {
    const nlohmann::json none = nlohmann::json::object();
    for (nlohmann::json& event : content.value().at("traceEvents")) {
      const nlohmann::json& args = event.contains("args") ? event.at("args") : none;
      if (event.at("name") == "process_name") {
        trace.places[rank_of(event)] = {.replica = within(args.at("data"), kMostTracedRanks),
                                        .tensor = within(args.at("tensor"), kMostTracedRanks),
                                        .stage = within(args.at("stage"), kMostTracedRanks)};
      } else if (event.at("ph") == "X") {
        static_cast<void>(args.at("step").get<std::int64_t>());
        if (args.contains("action")) {
          static_cast<void>(args.at("action").get<std::string>());
          within(args.at("microbatch"), kMostMicrobatches);
          within(args.value("chunk", nlohmann::json(0)), kMostTracedChunks);
          time_of(event.at("ts"));
          time_of(event.at("dur"));
          rank_of(event);
          trace.actions.push_back(std::move(event));
        } else {
          for (const nlohmann::json& part : args) {
            static_cast<void>(part.get<double>());
          }
          static_cast<void>(args.at("step_seconds"));
          rank_of(event);
          trace.steps.push_back(std::move(event));
        }
      } else if (event.at("ph") == "s" || event.at("ph") == "f") {
        const bool sent = event.at("ph") == "s";
        Message& message = trace.messages[event.at("id").get<std::string>()];
        (sent ? message.from : message.to) = rank_of(event);
        message.milliseconds += (sent ? -1.0 : 1.0) * kMilliseconds * time_of(event.at("ts"));
      }
    }
    for (const nlohmann::json::array_t& events :
         {std::cref(trace.actions), std::cref(trace.steps)}) {
      for (const nlohmann::json& event : events) {
        static_cast<void>(trace.places.at(rank_of(event)));
      }
    }
    for (const auto& [id, message] : trace.messages) {
      static_cast<void>(trace.places.at(message.from));
      static_cast<void>(trace.places.at(message.to));
    }
  } catch (const std::exception&) {
    fail(ExitCode::kUsage,
         "{} is not a timeline of strata; give the timeline.json that a run with run.timeline = "
         "FIRST-LAST wrote",
         printable_lines(file.string()));
  }
  if (trace.places.empty() || trace.steps.empty()) {
    fail(ExitCode::kUsage, "{} holds no step; give a run.timeline that the run comes to",
         printable_lines(file.string()));
  }
  number_replicas(trace.places);
  return trace;
}

}  // namespace strata::app
