#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/utf8.hpp"
#include "strata/io/text_file.hpp"
#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/schedule_file.hpp"
#include "strata/pipeline/search.hpp"
#include "strata/pipeline/simulator.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/planning/schedule_costs.hpp"
#include "drawing/step_drawing.hpp"

namespace strata::app {
namespace {

constexpr std::int64_t kMostStages = 4096;
constexpr std::int64_t kMostChunks = 64;
constexpr std::int64_t kMostMade = pipeline::kMostChunks;  // that training runs

/// A schedule by name, or from a file.
struct Given {
  std::string name;
  std::optional<pipeline::ScheduleFile> file;
  pipeline::Schedule schedule;
};

std::optional<pipeline::ScheduleKind> kind_of(const std::string& name) {
  const auto kind = enum_from_name<pipeline::ScheduleKind>(name);
  const bool trains = kind && *kind != pipeline::ScheduleKind::kForwardOnly &&
                      *kind != pipeline::ScheduleKind::kFile;
  return trains ? kind : std::nullopt;
}

Given read_file(const config::CommandLine& line, const std::string& name) {
  if (!std::filesystem::exists(name)) {
    fail(ExitCode::kUsage,
         "{} is neither a file nor one of gpipe, 1f1b, interleaved, zb-h1, zb-h2 and zb-v", name);
  }
  for (const char* option : {"stages", "microbatches", "chunks", "backward"}) {
    if (line.has(option)) {
      fail(ExitCode::kUsage, "--{} belongs to a schedule by name; {} says it itself", option, name);
    }
  }
  Given given{.name = name,
              .file = pipeline::parse_schedule(
                  io::read_input(name, pipeline::kMostFileBytes, ExitCode::kUsage), name),
              .schedule = {}};
  given.schedule = pipeline::schedule_of(*given.file, name);
  return given;
}

Given given(const config::CommandLine& line) {
  const std::string name = line.positions().front();
  const auto kind = kind_of(name);
  if (!kind) {
    return read_file(line, name);
  }
  for (const ShardingOption& option : kSharding) {
    if (line.has(option.name)) {
      fail(ExitCode::kUsage,
           "--{} is for the actions of a file; a schedule by name, as {}, has none such",
           option.name, name);
    }
  }
  const bool interleaved = *kind == pipeline::ScheduleKind::kInterleaved;
  const std::int64_t chunks = line.count("chunks", interleaved ? 2 : 1, 1, kMostChunks);
  const bool is_v = *kind == pipeline::ScheduleKind::kZbV;
  if (line.has("chunks") && !interleaved && chunks != (is_v ? 2 : 1)) {
    fail(ExitCode::kUsage, "--chunks belongs to interleaved; {} has {} a rank", name,
         is_v ? "two chunks" : "one chunk");
  }
  const pipeline::ScheduleSize size{
      .stages = line.count("stages", 4, 1, kMostStages),
      .microbatches = line.count("microbatches", 8, 1, kMostScheduled),
      .chunks = is_v ? 2 : chunks};
  pipeline::require_size(size.stages * size.chunks, size.microbatches, name);
  return {.name = name,
          .file = std::nullopt,
          .schedule = pipeline::make_schedule(*kind, size,
                                              line.value("backward", "split") == "split"
                                                  ? nn::BackwardOrder::kSplit
                                                  : nn::BackwardOrder::kFused)};
}

/// Throws: Error(kUsage) with what is wrong.
pipeline::CheckReport proven(const Given& given) {
  pipeline::CheckReport report = pipeline::check(given.schedule);
  if (report.passed()) {
    return report;
  }
  constexpr std::size_t kShown = 20;
  const std::size_t all = report.errors.size();
  report.errors.resize(std::min(all, kShown));
  const std::vector<std::string> errors =
      given.file ? pipeline::file_errors(*given.file, given.schedule, report, given.name)
                 : report.errors;
  fail(ExitCode::kUsage, "the schedule is not sound:\n  {}{}", fmt::join(errors, "\n  "),
       all > kShown ? fmt::format("\n  and {} more", all - kShown) : "");
}

pipeline::Simulation simulated(const config::CommandLine& line, const Given& given,
                               pipeline::Record record) {
  return pipeline::simulate(given.schedule, costs_of(line, given.schedule), record);
}

std::string size_text(const pipeline::Schedule& schedule) {
  return fmt::format("{} rank{}, {} microbatch{}, {} chunk{} a rank", schedule.stages,
                     schedule.stages == 1 ? "" : "s", schedule.microbatches,
                     schedule.microbatches == 1 ? "" : "es", schedule.chunks,
                     schedule.chunks == 1 ? "" : "s");
}

void print_sends(const pipeline::CheckReport& report) {
  if (!report.passes_with_rendezvous_sends) {
    fmt::print("It needs sends that complete before their receive begins\n");
  }
}

void print_check(const Given& given) {
  const pipeline::CheckReport report = proven(given);
  fmt::print("{}: sound; {}; at most {} activations of a chunk on a rank\n",
             printable_lines(given.name), size_text(given.schedule),
             std::ranges::max(report.peak_live));
  print_sends(report);
  if (!report.descending_weights.empty()) {
    fmt::print(
        "strata cannot train with it: weight gradients do not ascend by microbatch, first at "
        "{}\n",
        printable_lines(pipeline::place_text(*given.file, given.schedule,
                                             report.descending_weights.front(), given.name)));
  }
}

void print_ranks(const pipeline::Simulation& result, const pipeline::CheckReport& report) {
  fmt::print("{:>6}{:>14}{:>14}{:>14}{:>14}{:>14}\n", "rank", "busy ms", "idle ms", "bubble ms",
             "exposed ms", "activations");
  // Differences of sums are not exactly 0.
  const auto rounded = [&](double seconds) {
    constexpr double kRounding = 1e-12;
    return std::abs(seconds) > kRounding * result.makespan_seconds ? seconds : 0.0;
  };
  for (std::size_t rank = 0; rank < result.busy_seconds.size(); ++rank) {
    fmt::print("{:>6}{:>14.6g}{:>14.6g}{:>14.6g}{:>14.6g}{:>14}\n", rank, result.busy_seconds[rank],
               rounded(result.idle_seconds[rank]), rounded(result.bubble_seconds[rank]),
               rounded(result.exposed_seconds[rank]), report.peak_live[rank]);
  }
}

void print_simulation(const config::CommandLine& line, const Given& given) {
  const pipeline::CheckReport report = proven(given);
  const pipeline::Simulation result = simulated(line, given, pipeline::Record::kTotals);
  fmt::print("{}: {}\nstep {:.6g} ms, bubble {:.1f} % of it", printable_lines(given.name),
             size_text(given.schedule), result.makespan_seconds, 100.0 * result.bubble_fraction);
  if (result.step_seconds > result.makespan_seconds) {
    fmt::print("; {:.6g} ms with the optimizer", result.step_seconds);
  }
  fmt::print("\n");
  print_ranks(result, report);
}

/// Activations of a chunk, as in "12" or "8 to 12".
std::string most_text(const std::vector<std::int64_t>& memory, std::int64_t chunks) {
  const auto [least, most] = std::ranges::minmax(memory);
  return least == most ? fmt::format("{}", chunks * most)
                       : fmt::format("{} to {}", chunks * least, chunks * most);
}

ExitCode make(const config::CommandLine& line) {
  const pipeline::ScheduleSize size{
      .stages = line.count("stages", 4, 1, kMostStages),
      .microbatches = line.count("microbatches", 8, 1, kMostScheduled),
      .chunks = line.has("chunks") ? line.count("chunks", 1, 1, 2) : kMostMade};
  pipeline::require_size(size.stages * size.chunks, size.microbatches, "make");
  const std::vector<std::int64_t> memory = activations_of(line, size.stages);
  std::vector<std::int64_t> chunks = {size.chunks};
  if (!line.has("chunks")) {
    chunks.resize(kMostMade);
    std::iota(chunks.begin(), chunks.end(), 1);
  }
  const auto costs = [&](const pipeline::ChunkOrder& order) {
    const std::int64_t own = std::ssize(order.chunks()) / size.stages;
    // Also of interleaved, whose messages go from the last rank to the first too.
    pipeline::StageCosts own_costs =
        costs_of(line, {.stages = size.stages,
                        .microbatches = size.microbatches,
                        .chunks = own,
                        .order = pipeline::ChunkOrder::loop(size.stages, own),
                        .stage_actions = {}});
    const auto parts = line.has("chunks") ? 1.0 : static_cast<double>(own);
    for (std::vector<pipeline::ChunkTimes>& stage : own_costs.times) {
      for (pipeline::ChunkTimes& times : stage) {
        times.forward_seconds /= parts;
        times.backward_input_seconds /= parts;
        times.backward_weight_seconds /= parts;
      }
    }
    return own_costs;
  };
  const std::optional<pipeline::FoundChunks> made =
      pipeline::search({.stages = size.stages,
                        .microbatches = size.microbatches,
                        .chunks = std::move(chunks),
                        .activations = memory,
                        .costs = costs});
  const pipeline::FoundSchedule& found = made.value().found;
  const double step = found.simulation.makespan_seconds;
  fmt::print("{}\nstep {:.6g} ms, bubble {:.1f} % of it\n", size_text(found.schedule), step,
             100.0 * found.simulation.bubble_fraction);
  fmt::print(
      "no order of these chunks takes less than {:.6g} ms with {} activations of a chunk a rank: "
      "at most {:.2f} % can be saved\n",
      found.lower_bound_seconds, most_text(memory, found.schedule.chunks),
      step > 0.0 ? std::max(0.0, 100.0 * (step - found.lower_bound_seconds) / step) : 0.0);
  if (found.best_named) {
    fmt::print("fastest by name within them: {}, {:.6g} ms\n", name_of(found.best_named->kind),
               found.best_named->makespan_seconds);
  } else {
    fmt::print("no schedule by name fits them\n");
  }
  const pipeline::CheckReport report = pipeline::check(found.schedule);
  print_sends(report);
  print_ranks(found.simulation, report);
  if (line.has("output")) {
    const std::string output = line.value("output", "");
    write_file(output, pipeline::text_of(
                           pipeline::file_of(found.schedule, pipeline::FileContent::kCompute)));
    fmt::print("{}\n", printable_lines(output));
  }
  return ExitCode::kDone;
}

ExitCode check_schedule(const config::CommandLine& line) {
  print_check(given(line));
  return ExitCode::kDone;
}

ExitCode simulate_schedule(const config::CommandLine& line) {
  print_simulation(line, given(line));
  return ExitCode::kDone;
}

ExitCode draw_schedule(const config::CommandLine& line) {
  const Given schedule = given(line);
  const std::string output = line.required("output");
  static_cast<void>(proven(schedule));
  const pipeline::Simulation simulation = simulated(line, schedule, pipeline::Record::kActions);
  write_file(output, svg_of(schedule.schedule, simulation));
  fmt::print("{}\n", printable_lines(output));
  return ExitCode::kDone;
}

ExitCode convert_schedule(const config::CommandLine& line) {
  const Given schedule = given(line);
  const std::string output = line.value("output", "");
  const auto content = line.value("messages", "off") == "on" ? pipeline::FileContent::kMessages
                                                             : pipeline::FileContent::kCompute;
  static_cast<void>(proven(schedule));
  const std::string text =
      pipeline::text_of(schedule.file ? pipeline::converted(*schedule.file, content, schedule.name)
                                      : pipeline::file_of(schedule.schedule, content));
  if (output.empty()) {
    fmt::print("{}", text);
  } else {
    write_file(output, text);
    fmt::print("{}\n", printable_lines(output));
  }
  return ExitCode::kDone;
}

constexpr const char* kSchedules =
    R"(SCHEDULE is a file of torch.distributed.pipelining, or one of gpipe, 1f1b, interleaved, zb-h1, zb-h2 and zb-v.)";
constexpr const char* kMeasured =
    "strata timeline times prints the measured times of a run as options of this command.";

using Options = std::vector<config::CommandOption>;

Options joined(std::initializer_list<Options> groups) {
  Options all;
  for (const Options& group : groups) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

}  // namespace

Commands schedule_commands() {
  const Options sizes{
      {"stages", "N", "ranks of a schedule by name (default 4)"},
      {"microbatches", "N", "microbatches of a schedule by name (default 8)"},
      {"chunks", "N", "chunks per rank of interleaved (default 2)"},
      {"backward", "split|fused",
       R"(split: the input gradient is sent before the weight gradient is computed; fused: after it (default
split; for a file its own order))"}};
  const Options times{
      {"forward", "MS",
       R"(time of a chunk's forward pass (default 1); MS,MS,... gives each rank its own, MS/MS/... in place of
one MS each chunk of a rank)"},
      {"backward-input", "MS", "time of a chunk's input gradient (default 1), like --forward"},
      {"backward-weight", "MS", "time of a chunk's weight gradient (default 1), like --forward"},
      {"latency", "MS",
       R"(time of a message (default 0); MS,MS,... gives each pair of neighbouring ranks its own, and last,
where the schedule has them, the other pairs, as from the last rank to the first (default: as the first pair))"},
      {"bandwidth", "GB/S",
       "bandwidth of a link; adds bytes / bandwidth to a message's time; GB/S,GB/S,... as for "
       "--latency"},
      {"message-bytes", "N", "bytes of an activation and of its gradient"},
      {"gradient-bytes", "N", "bytes of a gradient (default: as --message-bytes)"}};
  const Options step{
      {"reduce", "MS",
       R"(time of the gradient reduction that nothing overlaps (default 0); MS,MS,... gives each rank its own)"},
      {"unshard", "MS", "time of the action UNSHARD of a file (default 0), like --reduce"},
      {"reshard", "MS", "time of the action RESHARD of a file (default 0), like --reduce"},
      {"reduce-gradient", "MS",
       "time of the action REDUCE_GRAD of a file (default 0), like --reduce"}};
  const auto row = [](const char* name, const char* purpose, const char* synopsis,
                      const std::string& about, const Options& options,
                      ExitCode (*run)(const config::CommandLine&)) {
    return config::Command{.name = name,
                           .purpose = purpose,
                           .synopses = {{synopsis}},
                           .about = about,
                           .options = options,
                           .positions = config::Positions::kOne,
                           .needs = "one schedule: a file, or a name",
                           .alone = run};
  };
  const std::string timed = fmt::format("{}\n{}", kSchedules, kMeasured);
  return {
      row("schedule check", "prove a pipeline schedule, or say what is wrong", "SCHEDULE [options]",
          kSchedules, sizes, check_schedule),
      row("schedule simulate", "step time, bubble and activations of each rank",
          "SCHEDULE [options]", timed,
          joined(
              {sizes,
               times,
               step,
               {{"optimizer", "MS",
                 "time of the optimizer, after all ranks have ended (default 0), like --reduce"}}}),
          simulate_schedule),
      row("schedule draw", "a picture of one step", "SCHEDULE --output=FILE.svg [options]", timed,
          joined({{{"output", "FILE.svg", "the picture"}}, sizes, times, step}), draw_schedule),
      row("schedule convert", "a schedule as a file for PyTorch",
          "SCHEDULE [--output=FILE.csv] [options]", kSchedules,
          joined({{{"output", "FILE.csv", "where to write (default: stdout)"},
                   {"messages", "on|off",
                    "with sends and receives, or compute actions only (default off)"}},
                  sizes}),
          convert_schedule),
      {.name = "schedule make",
       .purpose = "search for the fastest schedule for given times and memory",
       .synopses = {{"[--output=FILE.csv] [--memory=N] [options]"}},
       .about = kMeasured,
       .options = joined(
           {{{"output", "FILE.csv", "writes the schedule there"},
             {"stages", "N", "ranks (default 4)"},
             {"microbatches", "N", "microbatches (default 8)"},
             {"chunks", "N",
              R"(chunks a rank: 1, or 2 placed as a V or interleaved. Without it, the times are those of a rank's
layers, and 1 to 4 chunks of equal times are tried)"},
             {"memory", "N",
              R"(activations of a rank's layers that it holds at once, each from its forward pass to its weight
gradient (default: as many as there are stages); N,N,... gives each rank its own)"},
             {"activation-mib", "N",
              "MiB of such an activation; --memory then is in MiB. N,N,... as for --memory"}},
            times}),
       .positions = config::Positions::kNone,
       .alone = make}};
}

}  // namespace strata::app
