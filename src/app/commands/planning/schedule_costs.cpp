#include "commands/planning/schedule_costs.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string>

#include <fmt/format.h>

#include "strata/pipeline/stage_times.hpp"

namespace strata::app {
namespace {

/// Whether messages go between ranks that are no neighbours.
bool has_other_pairs(const pipeline::Schedule& schedule) {
  const std::vector<pipeline::StageChunk>& chunks = schedule.order.chunks();
  return std::ranges::adjacent_find(
             chunks, [](const pipeline::StageChunk& from, const pipeline::StageChunk& to) {
               return std::abs(from.stage - to.stage) > 1;
             }) != chunks.end();
}

/// The numbers of an option: one, or one for each pair of neighbouring ranks. Where the schedule
/// has messages between other pairs, one more is theirs, or else they have that of the first pair.
std::vector<double> link_numbers(const config::CommandLine& line, const char* name,
                                 const std::string& otherwise, const pipeline::Schedule& schedule) {
  const std::int64_t neighbours = schedule.stages - 1;
  const std::int64_t counts[] = {1, neighbours, schedule.stages};
  const std::size_t allowed = neighbours < 2 ? 1 : has_other_pairs(schedule) ? 3 : 2;
  return pipeline::parse_times(
      {.name = fmt::format("--{}", name), .text = line.value(name, otherwise)},
      std::span(counts).first(allowed));
}

/// A message takes the latency, and its bytes over the bandwidth.
std::vector<pipeline::LinkTimes> links_of(const config::CommandLine& line,
                                          const pipeline::Schedule& schedule) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
  constexpr double kBytesPerMillisecond = 1e6;  // of 1 GB/s
  std::vector<double> latencies = link_numbers(line, "latency", "0", schedule);
  std::vector<double> bandwidths = link_numbers(line, "bandwidth", "1", schedule);
  const auto activation = line.count("message-bytes", 0, 0, kMostBytes);
  const auto gradient = line.count("gradient-bytes", activation, 0, kMostBytes);
  if (line.has("bandwidth") != (activation + gradient > 0) ||
      std::ranges::find(bandwidths, 0.0) != bandwidths.end()) {
    fail(ExitCode::kUsage,
         "messages that take their bytes over the bandwidth need --bandwidth above 0 and "
         "--message-bytes above 0; give both or neither");
  }
  const std::size_t links = std::max(latencies.size(), bandwidths.size());
  latencies.resize(links, latencies.front());
  bandwidths.resize(links, bandwidths.front());
  std::vector<pipeline::LinkTimes> all;
  for (std::size_t i = 0; i < links; ++i) {
    const double rate = kBytesPerMillisecond * bandwidths[i];
    all.push_back({.activation_seconds = latencies[i] + static_cast<double>(activation) / rate,
                   .gradient_seconds = latencies[i] + static_cast<double>(gradient) / rate});
  }
  if (links > 1 && std::ssize(all) < schedule.stages) {
    all.push_back(has_other_pairs(schedule) ? all.front() : pipeline::LinkTimes());
  }
  return all;
}

/// The numbers of an option: one for all ranks, or one for each. 0 without the option.
std::vector<double> rank_numbers(const config::CommandLine& line, const char* name,
                                 std::int64_t stages) {
  const std::int64_t counts[] = {1, stages};
  std::vector<double> numbers = pipeline::parse_times(
      {.name = fmt::format("--{}", name), .text = line.value(name, "0")}, counts);
  numbers.resize(static_cast<std::size_t>(stages), numbers.front());
  return numbers;
}

}  // namespace

pipeline::StageCosts costs_of(const config::CommandLine& line, const pipeline::Schedule& schedule) {
  const auto text = [&](const char* name) {
    return pipeline::TimesText{.name = fmt::format("--{}", name), .text = line.value(name, "1")};
  };
  std::vector<std::vector<pipeline::ChunkTimes>> times =
      pipeline::parse_chunk_times(text("forward"), text("backward-input"), text("backward-weight"),
                                  schedule.stages, schedule.chunks);
  for (const ShardingOption& option : kSharding) {
    const std::vector<double> numbers = rank_numbers(line, option.name, schedule.stages);
    for (std::size_t rank = 0; rank < times.size(); ++rank) {
      for (pipeline::ChunkTimes& own : times[rank]) {
        own.*option.seconds = numbers[rank];
      }
    }
  }
  return {.times = std::move(times),
          .links = links_of(line, schedule),
          .reduce_seconds = rank_numbers(line, "reduce", schedule.stages),
          .optimizer_seconds = rank_numbers(line, "optimizer", schedule.stages)};
}

std::vector<std::int64_t> activations_of(const config::CommandLine& line, std::int64_t stages) {
  if (!line.has("memory")) {
    return {stages};
  }
  const std::vector<double> memory = rank_numbers(line, "memory", stages);
  const std::vector<double> bytes = rank_numbers(line, "activation-mib", stages);
  std::vector<std::int64_t> most;
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    const double activations =
        line.has("activation-mib") ? std::floor(memory[rank] / bytes[rank]) : memory[rank];
    if (!(activations >= 1.0 && activations <= static_cast<double>(kMostScheduled)) ||
        activations != std::floor(activations)) {
      fail(ExitCode::kUsage,
           "--memory allows {:.6g} activations on rank {}; it must allow from 1 to {}, in whole "
           "numbers, or as MiB with --activation-mib",
           activations, rank, kMostScheduled);
    }
    most.push_back(static_cast<std::int64_t>(activations));
  }
  return most;
}

}  // namespace strata::app
