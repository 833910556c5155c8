#include "commands/watching/timeline_command.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/core/enum_names.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"
#include "strata/pipeline/schedule.hpp"
#include "strata/pipeline/simulator.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/planning/step_measurement.hpp"
#include "commands/watching/step_parts.hpp"
#include "drawing/step_drawing.hpp"

namespace strata::app {
namespace {

constexpr std::int64_t kMostTimelineBytes = std::int64_t{4} << 30;
constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;
constexpr std::int64_t kMostMicrobatches = std::int64_t{1} << 30;
constexpr std::int64_t kMostChunks = 64;
constexpr double kMilliseconds = 1e-3;  // of a microsecond

/// A rank's place in the grid.
struct Place {
  std::int64_t data = 0;
  std::int64_t stage = 0;
  std::int64_t tensor = 0;
};

/// A message's way, and its time from the begin of the send to the end of the receive.
struct Message {
  std::int64_t from = 0;  ///< ranks
  std::int64_t to = 0;
  double milliseconds = 0.0;
};

/// The parts of steps, in milliseconds.
struct Account {
  struct Part {
    std::string key;  ///< as in metrics.jsonl
    std::string title;
  };
  [[nodiscard]] static std::vector<Part> all_parts() {
    std::vector<Part> parts;
    for (const auto& [key, name] : kStepParts) {
      if (std::string_view(key) != "communication_seconds") {
        parts.push_back({key, name});
        continue;
      }
      for (const std::string_view axis : enum_names(grid::Axis())) {
        parts.push_back({fmt::format("{}_group_seconds", axis), fmt::format("{} group", axis)});
      }
    }
    return parts;
  }

  std::int64_t steps = 0;
  double step = 0.0;
  std::map<std::string, double> parts;  ///< by title

  void add(const nlohmann::json& args) {
    ++steps;
    step += 1e3 * args.at("step_seconds").get<double>();
    for (const Part& part : all_parts()) {
      parts[part.title] += 1e3 * args.value(part.key, 0.0);  // older files lack the groups
    }
  }
  void print(const std::string& name) const {
    const auto count = static_cast<double>(std::max<std::int64_t>(steps, 1));
    fmt::print("{:>6}{:>12.3f}", name, step / count);
    for (const Part& part : all_parts()) {
      const double seconds = parts.at(part.title);
      fmt::print("{:>16}", fmt::format("{:.3f} {:>4.1f} %", seconds / count,
                                       step > 0.0 ? 100.0 * seconds / step : 0.0));
    }
    fmt::print("\n");
  }
};

struct Trace {
  std::map<std::int64_t, Place> places;  ///< by rank
  nlohmann::json::array_t steps;         ///< slices of whole steps
  nlohmann::json::array_t actions;
  std::map<std::string, Message> messages;  ///< by id
};

/// Throws: Error(kUsage) where the file is none of strata's timelines.
Trace read_trace(const std::string& path) {
  std::optional<nlohmann::json> content =
      io::parse_json(io::read_input(path, kMostTimelineBytes, ExitCode::kUsage));
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
    return within(event.at("pid"), kMostRanks);
  };
  try {
    const nlohmann::json none = nlohmann::json::object();
    for (nlohmann::json& event : content.value().at("traceEvents")) {
      const nlohmann::json& args = event.contains("args") ? event.at("args") : none;
      if (event.at("name") == "process_name") {
        trace.places[rank_of(event)] = {within(args.at("data"), kMostRanks),
                                        within(args.at("stage"), kMostRanks),
                                        within(args.at("tensor"), kMostRanks)};
      } else if (event.at("ph") == "X") {
        static_cast<void>(args.at("step").get<std::int64_t>());
        if (args.contains("action")) {
          static_cast<void>(args.at("action").get<std::string>());
          within(args.at("microbatch"), kMostMicrobatches);
          within(args.value("chunk", nlohmann::json(0)), kMostChunks);
          time_of(event.at("ts"));
          time_of(event.at("dur"));
          rank_of(event);
          trace.actions.push_back(std::move(event));
        } else {
          Account().add(args);
          trace.steps.push_back(std::move(event));
        }
      } else if (event.at("ph") == "s" || event.at("ph") == "f") {
        const bool sent = event.at("ph") == "s";
        Message& message = trace.messages[event.at("id").get<std::string>()];
        (sent ? message.from : message.to) = rank_of(event);
        message.milliseconds += (sent ? -1.0 : 1.0) * kMilliseconds * time_of(event.at("ts"));
      }
    }
    for (const nlohmann::json& action : trace.actions) {
      static_cast<void>(trace.places.at(rank_of(action)));
    }
    for (const auto& [id, message] : trace.messages) {
      static_cast<void>(trace.places.at(message.from));
      static_cast<void>(trace.places.at(message.to));
    }
  } catch (const std::exception&) {
    fail(ExitCode::kUsage,
         "{} is not a timeline of strata; give the timeline.json that a run with run.timeline = "
         "FIRST-LAST wrote",
         printable_lines(path));
  }
  if (trace.places.empty() || trace.steps.empty()) {
    fail(ExitCode::kUsage, "{} holds no step; give a run.timeline that the run comes to",
         printable_lines(path));
  }
  return trace;
}

/// The file that the command line names, or a run's directory holds.
std::string timeline_of(const config::CommandLine& line) {
  std::filesystem::path file = line.positions().front();
  if (std::error_code ignored; std::filesystem::is_directory(file, ignored)) {
    file /= "timeline.json";
  }
  return file;
}

ExitCode report_times(const config::CommandLine& line) {
  const Trace trace = read_trace(timeline_of(line));
  std::map<std::int64_t, Account> ranks;
  Account all;
  std::set<std::int64_t> numbers;
  for (const nlohmann::json& step : trace.steps) {
    ranks[step.at("pid")].add(step.at("args"));
    all.add(step.at("args"));
    numbers.insert(step.at("args").at("step").get<std::int64_t>());
  }
  fmt::print("steps {} to {}, means in ms; exposed communication is listed by group\n{:>6}{:>12}",
             *numbers.begin(), *numbers.rbegin(), "rank", "step");
  for (const Account::Part& part : Account::all_parts()) {
    fmt::print("{:>16}", part.title);
  }
  fmt::print("\n");
  for (const auto& [rank, account] : ranks) {
    account.print(fmt::format("{}", rank));
  }
  all.print("all");
  return ExitCode::kDone;
}

/// The shortest message from each stage to each other; others also wait for their receiver.
std::map<std::pair<std::int64_t, std::int64_t>, double> shortest_messages(const Trace& trace) {
  std::map<std::pair<std::int64_t, std::int64_t>, double> shortest;
  for (const auto& [id, message] : trace.messages) {
    const std::pair between(trace.places.at(message.from).stage, trace.places.at(message.to).stage);
    const auto found = shortest.emplace(between, message.milliseconds).first;
    found->second = std::min(found->second, message.milliseconds);
  }
  return shortest;
}

/// Medians over steps, microbatches, replicas and tensor ranks.
ExitCode print_times(const config::CommandLine& line) {
  const std::string path = timeline_of(line);
  const Trace trace = read_trace(path);
  constexpr pipeline::ActionKind kKinds[] = {pipeline::ActionKind::kForward,
                                             pipeline::ActionKind::kBackwardInput,
                                             pipeline::ActionKind::kBackwardWeight};
  std::map<std::string, std::map<std::int64_t, std::map<std::int64_t, std::vector<double>>>> all;
  std::int64_t microbatches = 0;
  for (const nlohmann::json& event : trace.actions) {
    const nlohmann::json& args = event.at("args");
    all[args.at("action")][trace.places.at(event.at("pid")).stage]
       [args.value("chunk", std::int64_t{0})]
           .push_back(kMilliseconds * event.at("dur").get<double>());
    microbatches = std::max(microbatches, args.at("microbatch").get<std::int64_t>() + 1);
  }
  std::vector<std::string> options;
  std::array<double, std::size(kKinds)> sums{};
  for (std::size_t i = 0; i < std::size(kKinds); ++i) {
    const std::string name(name_of(kKinds[i]));
    const auto& stages = all[name];
    if (stages.empty()) {
      fail(ExitCode::kUsage,
           "{} holds no {} of a pipeline; record a step of training with run.timeline",
           printable_lines(path), name);
    }
    if (i == 0) {
      options.push_back(fmt::format("--stages={} --microbatches={}", stages.size(), microbatches));
      options.push_back(fmt::format("--chunks={}", stages.begin()->second.size()));
    }
    std::vector<std::string> texts;
    for (const auto& [stage, chunks] : stages) {
      std::vector<std::string> own;
      for (const auto& [chunk, measured] : chunks) {
        const double median = median_of(measured);
        sums.at(i) += median;
        own.push_back(fmt::format("{:.4g}", median));
      }
      texts.push_back(fmt::format("{}", fmt::join(own, "/")));
    }
    options.push_back(fmt::format("--{}={}", name, fmt::join(texts, ",")));
  }
  const auto stages = static_cast<std::int64_t>(all[std::string(name_of(kKinds[0]))].size());
  std::vector<std::string> latencies;
  auto shortest = shortest_messages(trace);
  for (std::int64_t stage = 0; stage + 1 < stages; ++stage) {
    // Of the slower direction.
    latencies.push_back(fmt::format(
        "{:.4g}", std::max({shortest[{stage, stage + 1}], shortest[{stage + 1, stage}], 0.0})));
  }
  if (!latencies.empty()) {
    options.push_back(fmt::format("--latency={}", fmt::join(latencies, ",")));
  }
  fmt::print("{}\n", fmt::join(options, " "));
  constexpr double kNothing = 0.02;
  if (sums[2] < kNothing * sums[1]) {
    fmt::print(stderr,
               "the input gradients contain the weight gradients; record a run with "
               "parallel.backward = split to have each\n");
  }
  return ExitCode::kDone;
}

ExitCode draw_step(const config::CommandLine& line) {
  const std::string path = timeline_of(line);
  const std::string output = line.required("output");
  StepChoice choice{.data = line.count("data", 0, 0, kMostRanks),
                    .tensor = line.count("tensor", 0, 0, kMostRanks)};
  if (line.has("step")) {
    choice.step = line.count("step", 1, 1, std::numeric_limits<std::int64_t>::max());
  }
  write_file(output, step_picture(path, choice).svg);
  fmt::print("{}\n", printable_lines(output));
  return ExitCode::kDone;
}

}  // namespace

StepPicture step_picture(const std::string& path, const StepChoice& choice) {
  const Trace trace = read_trace(path);
  const std::int64_t step =
      choice.step.value_or(trace.steps.front().at("args").at("step").get<std::int64_t>());
  pipeline::Schedule schedule{.microbatches = 0};
  pipeline::Simulation drawn;
  double first = std::numeric_limits<double>::infinity();
  for (const nlohmann::json& event : trace.actions) {
    const Place& at = trace.places.at(event.at("pid"));
    const nlohmann::json& args = event.at("args");
    const auto kind = enum_from_name<pipeline::ActionKind>(args.at("action").get<std::string>());
    if (at.data != choice.data || at.tensor != choice.tensor || args.at("step") != step || !kind) {
      continue;
    }
    const double begin = kMilliseconds * event.at("ts").get<double>();
    const auto microbatch = args.at("microbatch").get<std::int64_t>();
    const std::int64_t chunk = args.value("chunk", std::int64_t{0});
    drawn.actions.push_back({.stage = at.stage,
                             .action = {.kind = *kind, .microbatch = microbatch, .chunk = chunk},
                             .begin_seconds = begin,
                             .end_seconds = begin + kMilliseconds * event.at("dur").get<double>()});
    first = std::min(first, begin);
    schedule.stages = std::max(schedule.stages, at.stage + 1);
    schedule.microbatches = std::max(schedule.microbatches, microbatch + 1);
    schedule.chunks = std::max(schedule.chunks, chunk + 1);
  }
  if (drawn.actions.empty()) {
    fail(ExitCode::kUsage,
         "{} has no action of step {} on replica {}, tensor rank {}; choose others with --step, "
         "--data and --tensor",
         printable_lines(path), step, choice.data, choice.tensor);
  }
  for (pipeline::TimedAction& timed : drawn.actions) {
    timed.begin_seconds -= first;
    timed.end_seconds -= first;
    drawn.makespan_seconds = std::max(drawn.makespan_seconds, timed.end_seconds);
  }
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(schedule.stages));
  for (const auto& [rank, at] : trace.places) {
    if (at.data == choice.data && at.tensor == choice.tensor && at.stage < schedule.stages) {
      ranks[static_cast<std::size_t>(at.stage)] = rank;
    }
  }
  return {.step = step, .svg = svg_of(schedule, drawn, ranks)};
}

Commands timeline_commands() {
  const auto row = [](const char* name, const char* purpose, const char* synopsis,
                      const std::vector<config::CommandOption>& options,
                      ExitCode (*run)(const config::CommandLine&)) {
    return config::Command{
        .name = name,
        .purpose = purpose,
        .synopses = {{synopsis}},
        .about =
            R"(FILE is the timeline.json that a run with run.timeline = FIRST-LAST wrote, or its run directory.)",
        .options = options,
        .positions = config::Positions::kOne,
        .needs = "one file",
        .alone = run};
  };
  return {row("timeline report", "the time account of each rank in the recorded steps", "FILE", {},
              report_times),
          row("timeline draw", "a picture of one recorded step of one pipeline",
              "FILE --output=FILE.svg [options]",
              {{"output", "FILE.svg", "the picture"},
               {"step", "N", "which step (default the first recorded one)"},
               {"data", "N", "which replica (default 0)"},
               {"tensor", "N", "which tensor rank (default 0)"}},
              draw_step),
          row("timeline times", "the measured times as options of strata schedule", "FILE", {},
              print_times)};
}

}  // namespace strata::app
