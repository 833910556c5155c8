#include "commands/watching/timeline_command.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/core/enum_names.hpp"
#include "strata/core/utf8.hpp"
#include "strata/pipeline/schedule.hpp"
#include "strata/pipeline/simulator.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/planning/step_measurement.hpp"
#include "commands/watching/step_parts.hpp"
#include "commands/watching/timeline_trace.hpp"
#include "drawing/step_drawing.hpp"

namespace strata::app {
namespace {

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

/// Who computes most and who least, of ranks or stages.
struct Unevenness {
  std::int64_t most = 0;
  std::int64_t least = 0;
  double ratio = 1.0;
};

Unevenness unevenness_of(const std::map<std::int64_t, double>& compute) {
  const auto [least, most] =
      std::ranges::minmax_element(compute, {}, &std::pair<const std::int64_t, double>::second);
  return {most->first, least->first, most->second / std::max(least->second, 1e-9)};
}

std::string factor_text(double factor) {
  return factor < 10.0 ? fmt::format("{:.1f}", factor) : fmt::format("{:.0f}", factor);
}

/// Why the ranks wait for each other in a group, and what to change.
std::string reason_of(const std::string& part, const Trace& trace,
                      const std::map<std::int64_t, Account>& ranks) {
  constexpr double kUneven = 1.25;
  std::map<std::int64_t, double> stages;
  std::map<std::int64_t, std::map<std::int64_t, double>> members;
  for (const auto& [rank, account] : ranks) {
    const double compute = account.parts.at("compute") / static_cast<double>(account.steps);
    const std::int64_t stage = trace.places.at(rank).stage;
    stages[stage] += compute;
    members[stage][rank] = compute;
  }
  Unevenness worst;
  for (const auto& [stage, computes] : members) {
    stages[stage] /= static_cast<double>(computes.size());
    const Unevenness own = unevenness_of(computes);
    worst = own.ratio > worst.ratio ? own : worst;
  }
  if (part == "bubble" || part == "pipeline group") {
    const Unevenness uneven = unevenness_of(stages);
    std::int64_t microbatches = 0;
    for (const nlohmann::json& event : trace.actions) {
      microbatches =
          std::max(microbatches, event.at("args").at("microbatch").get<std::int64_t>() + 1);
    }
    return uneven.ratio > kUneven
               ? fmt::format(
                     "stage {} has {} times the work of stage {}: parallel.split, or fewer stages",
                     uneven.most, factor_text(uneven.ratio), uneven.least)
           : microbatches < 4 * std::ssize(stages)
               ? fmt::format(
                     "{} microbatches are few for {} stages: a smaller batch.micro, or fewer "
                     "stages",
                     microbatches, stages.size())
               : "parallel.schedule = zb-h1, or fewer stages";
  }
  if (part.ends_with("group") && worst.ratio > kUneven) {
    return fmt::format(
        "rank {} computes {} times as long as rank {} of its stage: strata doctor looks "
        "for the cause",
        worst.most, factor_text(worst.ratio), worst.least);
  }
  return part == "data group"     ? "a larger batch.global, or parallel.sync = local"
         : part == "tensor group" ? "a smaller parallel.tensor"
         : part == "data wait"    ? "more data.reader_threads"
         : part == "other"        ? "checks and repeated steps are in it: train.repeat_every"
                                  : "a larger local.steps, or local.exchange = bfloat16";
}

/// What takes most of the steps besides computing.
std::string conclusion_of(const Trace& trace, const std::map<std::int64_t, Account>& ranks,
                          const Account& all) {
  constexpr double kSmall = 0.1;
  const auto largest = std::ranges::max_element(
      all.parts, {}, [](const auto& part) { return part.first == "compute" ? -1.0 : part.second; });
  const double share = largest->second / std::max(all.step, 1e-9);
  if (share < kSmall) {
    return fmt::format("computing takes {:.0f} % of a step; of the rest, {} takes most, {:.1f} %",
                       100.0 * all.parts.at("compute") / std::max(all.step, 1e-9), largest->first,
                       100.0 * share);
  }
  return fmt::format("{} takes {:.0f} % of a step; {}", largest->first, 100.0 * share,
                     reason_of(largest->first, trace, ranks));
}

ExitCode report_times(const config::CommandLine& line) {
  const Trace trace = read_trace(line.positions().front());
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
  fmt::print("{}\n", conclusion_of(trace, ranks, all));
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
  const std::string& path = line.positions().front();
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
  const std::string output = line.required("output");
  StepChoice choice{.tensor = line.count("tensor", 0, 0, kMostTracedRanks)};
  if (line.has("step")) {
    choice.step = line.count("step", 1, 1, std::numeric_limits<std::int64_t>::max());
  }
  if (line.has("data")) {
    choice.data = line.count("data", 0, 0, kMostTracedRanks);
  }
  const StepPicture picture = step_picture(line.positions().front(), choice);
  write_file(output, picture.svg);
  fmt::print(
      "{}{}\n", printable_lines(output),
      picture.left_out == 0
          ? ""
          : fmt::format(": without {} further replicas; --data=N draws one", picture.left_out));
  return ExitCode::kDone;
}

}  // namespace

StepPicture step_picture(const std::string& path, const StepChoice& choice) {
  constexpr std::int64_t kMostRows = 32;
  const Trace trace = read_trace(path);
  const std::int64_t step =
      choice.step.value_or(trace.steps.front().at("args").at("step").get<std::int64_t>());
  std::map<Place, std::int64_t> ranks;  // that are drawn, in the order of the rows
  for (const auto& [rank, at] : trace.places) {
    if (at.replica == choice.data.value_or(at.replica) && at.tensor == choice.tensor) {
      ranks.emplace(at, rank);
    }
  }
  DrawnRanks rows;
  std::map<std::int64_t, std::int64_t> row_of;
  StepPicture picture{.step = step};
  for (auto at = ranks.begin(); at != ranks.end();) {
    const Place first = at->first;
    const auto end = ranks.upper_bound({first.replica, first.tensor, kMostTracedRanks});
    if (const std::int64_t stages = std::distance(at, end);
        !row_of.empty() && std::ssize(row_of) + stages > kMostRows) {
      ++picture.left_out;
      at = end;
      continue;
    }
    rows.groups.push_back({fmt::format("replica {}", first.replica), std::ssize(row_of)});
    for (; at != end; ++at) {
      row_of.emplace(at->second, std::ssize(row_of));
      rows.ranks.push_back(at->second);
    }
  }
  pipeline::Schedule schedule{.stages = std::ssize(row_of), .microbatches = 0};
  pipeline::Simulation drawn;
  double first = std::numeric_limits<double>::infinity();
  for (const nlohmann::json& event : trace.actions) {
    const nlohmann::json& args = event.at("args");
    const auto kind = enum_from_name<pipeline::ActionKind>(args.at("action").get<std::string>());
    const auto row = row_of.find(event.at("pid").get<std::int64_t>());
    if (row == row_of.end() || args.at("step") != step || !kind) {
      continue;
    }
    const double begin = kMilliseconds * event.at("ts").get<double>();
    const auto microbatch = args.at("microbatch").get<std::int64_t>();
    const std::int64_t chunk = args.value("chunk", std::int64_t{0});
    drawn.actions.push_back({.stage = row->second,
                             .action = {.kind = *kind, .microbatch = microbatch, .chunk = chunk},
                             .begin_seconds = begin,
                             .end_seconds = begin + kMilliseconds * event.at("dur").get<double>()});
    first = std::min(first, begin);
    schedule.microbatches = std::max(schedule.microbatches, microbatch + 1);
    schedule.chunks = std::max(schedule.chunks, chunk + 1);
  }
  if (drawn.actions.empty()) {
    fail(ExitCode::kUsage,
         "{} has no action of step {} on {}, tensor rank {}; choose others with --step, --data and "
         "--tensor",
         printable_lines(path), step,
         choice.data ? fmt::format("replica {}", *choice.data) : "any replica", choice.tensor);
  }
  for (pipeline::TimedAction& timed : drawn.actions) {
    timed.begin_seconds -= first;
    timed.end_seconds -= first;
    drawn.makespan_seconds = std::max(drawn.makespan_seconds, timed.end_seconds);
  }
  picture.svg = svg_of(schedule, drawn, rows);
  return picture;
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
          row("timeline draw", "a picture of one recorded step", "FILE --output=FILE.svg [options]",
              {{"output", "FILE.svg", "the picture"},
               {"step", "N", "which step (default the first recorded one)"},
               {"data", "N", "which replica (default: as many as 32 rows hold)"},
               {"tensor", "N", "which tensor rank (default 0)"}},
              draw_step),
          row("timeline times", "the measured times as options of strata schedule", "FILE", {},
              print_times)};
}

}  // namespace strata::app
