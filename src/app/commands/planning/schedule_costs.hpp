#pragma once

#include <cstdint>
#include <vector>

#include "strata/config/command.hpp"
#include "strata/pipeline/schedule.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::app {

/// Microbatches of a schedule.
constexpr std::int64_t kMostScheduled = 65536;

/// The options of actions that only files have, each time of all chunks of a rank.
struct ShardingOption {
  const char* name;
  double pipeline::ChunkTimes::*seconds;
};
inline constexpr ShardingOption kSharding[] = {
    {"unshard", &pipeline::ChunkTimes::unshard_seconds},
    {"reshard", &pipeline::ChunkTimes::reshard_seconds},
    {"reduce-gradient", &pipeline::ChunkTimes::reduce_gradient_seconds}};

/// The times of strata schedule's options, in milliseconds, as all times of that command.
/// Throws: Error(kUsage).
[[nodiscard]] pipeline::StageCosts costs_of(const config::CommandLine& line,
                                            const pipeline::Schedule& schedule);

/// The activations of its layers that each rank has memory for.
/// Throws: Error(kUsage) where that is none of a rank's layers.
[[nodiscard]] std::vector<std::int64_t> activations_of(const config::CommandLine& line,
                                                       std::int64_t stages);

}  // namespace strata::app
