#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/plan/replication.hpp"

#include "resolve.hpp"

// Lanes, shards and the samples of a microbatch.
namespace strata::plan {

namespace {

/// `parts` describes what the batch is divided into; `divisor` must divide it.
void check_batch(std::int64_t value, const std::string& parts, std::int64_t divisor) {
  if (value % divisor == 0) {
    return;
  }
  const std::int64_t below = value / divisor * divisor;
  const std::string nearest =
      below > 0 ? fmt::format("{} or {}", below, below + divisor) : std::to_string(divisor);
  fail(ExitCode::kUsage, "batch.global is {}, not divisible by {}; the nearest valid values: {}",
       value, parts, nearest);
}

std::int64_t tokens_of(const io::DatasetInfo& data) {
  return data.task == io::Task::kNextToken ? data.input_shape[0] : 1;
}

/// The largest divisor of a number of samples that is at most `most`.
std::int64_t divisor_below(std::int64_t samples, std::int64_t most) {
  std::int64_t divisor = std::max<std::int64_t>(1, std::min(samples, most));
  while (samples % divisor != 0) {
    --divisor;
  }
  return divisor;
}

/// The largest divisor of a lane's samples that keeps matrix products efficient and leaves a
/// pipeline several microbatches. A GPU needs larger products than a core.
std::int64_t default_microbatch(std::int64_t lane_batch, const io::DatasetInfo& data,
                                device::DeviceKind device) {
  const bool gpu = device == device::DeviceKind::kCuda;
  const std::int64_t most_tokens = gpu ? 16384 : 4096;
  return divisor_below(lane_batch,
                       std::min<std::int64_t>(gpu ? 64 : 32, most_tokens / tokens_of(data)));
}

/// In fast mode the virtual grid is the grid.
void check_fast(const config::RunConfig& config, const grid::Grid& grid) {
  const auto check = [](std::string_view key, std::int64_t value, std::string_view axis,
                        std::int64_t ranks) {
    if (value != 0 && value != ranks) {
      fail(ExitCode::kUsage,
           "{} is {} and {} is {}, but numerics.mode = fast has as many as there are ranks; set {} "
           "to 0, or numerics.mode to invariant",
           key, value, axis, ranks, key);
    }
  };
  check("numerics.lanes", config.numerics.lanes, "parallel.data", grid.data);
  check("numerics.shards", config.numerics.shards, "parallel.tensor", grid.tensor);
}

bool is_fast(const config::RunConfig& config) {
  return config.numerics.mode == comm::Summation::kLibrary;
}

}  // namespace

std::int64_t default_lanes(const config::RunConfig& config, std::int64_t samples,
                           std::int64_t replicas, const io::DatasetInfo& data,
                           device::DeviceKind device) {
  // Measured on CPUs (docs/numerics.md): lanes cost little, small microbatches of samples much.
  constexpr std::int64_t kMost = 8;
  constexpr std::int64_t kMostOfFewSamples = 4;
  constexpr std::int64_t kLeastSamples = 8;
  const bool gpu = device == device::DeviceKind::kCuda;
  const bool tokens = data.task == io::Task::kNextToken;
  const std::int64_t least_tokens = gpu ? 8192 : 512;
  const std::int64_t own = default_microbatch(samples / replicas, data, device);
  const auto least = [&](std::int64_t lanes) {
    if (tokens) {
      return std::min(own, (least_tokens + tokens_of(data) - 1) / tokens_of(data));
    }
    return gpu || lanes > kMostOfFewSamples ? own : std::min(own, kLeastSamples);
  };
  const auto is_good = [&](std::int64_t lanes) {
    const std::int64_t given = config.batch.micro;
    return samples % (lanes * std::max<std::int64_t>(1, given)) == 0 &&
           (given != 0 || default_microbatch(samples / lanes, data, device) >= least(lanes));
  };
  std::int64_t lanes = replicas;
  while (2 * lanes <= kMost && is_good(2 * lanes)) {
    lanes *= 2;
  }
  return lanes;
}

VirtualGrid kept_grid(const config::RunConfig& given, const VirtualGrid& stored) {
  const auto differs = [](std::int64_t asked, std::int64_t kept) {
    return asked != 0 && asked != kept;
  };
  const bool other =
      differs(given.numerics.lanes, stored.lanes) || differs(given.numerics.shards, stored.shards);
  if (stored.lanes == 0 || !other || !stored.consent || is_fast(given) ||
      replication_of(given.parallel.sync).lanes_are_work()) {
    return stored;
  }
  VirtualGrid kept = stored;
  kept.lanes = given.numerics.lanes != 0 ? given.numerics.lanes : stored.lanes;
  kept.shards = given.numerics.shards != 0 ? given.numerics.shards : stored.shards;
  kept.microbatch = given.batch.micro != 0
                        ? given.batch.micro
                        : divisor_below(given.batch.global / kept.lanes, stored.microbatch);
  if (kept.microbatch != stored.microbatch) {
    kept.loss_pieces = 0;
  }
  return kept;
}

VirtualGrid virtual_grid_of(const Plan& plan) {
  const config::RunConfig& c = plan.config;
  return {.lanes = c.numerics.lanes,
          .shards = c.numerics.shards,
          .microbatch = c.batch.micro,
          .loss_pieces = c.numerics.loss_pieces};
}

std::string virtual_grid_text(const VirtualGrid& grid) {
  return fmt::format("{} lane{} x {} shard{} in microbatches of {}", grid.lanes,
                     grid.lanes == 1 ? "" : "s", grid.shards, grid.shards == 1 ? "" : "s",
                     grid.microbatch);
}

VirtualGrid resolve_virtual_grid(const config::RunConfig& given, const grid::Grid& grid,
                                 const io::DatasetInfo& data, const VirtualGrid& stored,
                                 device::DeviceKind device) {
  const bool fast = is_fast(given);
  if (fast) {
    check_fast(given, grid);
  }
  const ReplicationPlan& replication = replication_of(given.parallel.sync);
  const auto [parts, jobs] = replication.resolve_parts(given, grid, stored);
  // A lane belongs to one part.
  const std::int64_t part_replicas = std::max<std::int64_t>(1, grid.replicas() * jobs / parts);
  const std::int64_t otherwise =
      fast || replication.lanes_are_work()
          ? std::max(grid.replicas(), parts)
          : parts * default_lanes(given, given.batch.global / parts, part_replicas, data, device);
  const auto resolved = [&](std::string_view key, std::int64_t configured, std::int64_t kept,
                            std::int64_t open) {
    if (kept != 0 && configured != 0 && configured != kept && !replication.lanes_are_work()) {
      fail(ExitCode::kUsage,
           "{} is {}, but the checkpoint that this run continues was made with {}; it determines "
           "the results, so leave it out or set it to {}, or, to go on with other numbers, give "
           "--{}={} on the command line",
           key, configured, kept, kept, key, configured);
    }
    return resolve_value(key, configured, kept, open);
  };
  const std::int64_t lanes =
      resolved("numerics.lanes", given.numerics.lanes, fast ? 0 : stored.lanes, otherwise);
  const std::int64_t shards =
      resolved("numerics.shards", given.numerics.shards, fast ? 0 : stored.shards, grid.tensor);
  replication.check_lanes(lanes, parts);
  // What goes on with a checkpoint that this grid does not divide.
  const auto instead = [&](std::string_view what, std::int64_t new_lanes, std::string setting) {
    if (stored.lanes == 0 || replication.lanes_are_work()) {
      return fmt::format("in a new run, other {}", what);
    }
    const std::int64_t samples = given.batch.global / new_lanes;
    if (given.batch.micro != 0 && samples % given.batch.micro != 0) {
      setting += fmt::format(" --batch.micro={}", divisor_below(samples, given.batch.micro));
    }
    return fmt::format(
        "to go on with other {} from the checkpoint's weights and optimizer state, {} (from there "
        "on the numbers are those of another virtual grid)",
        what, setting);
  };
  if (lanes / jobs % grid.replicas() != 0) {
    const std::int64_t other =
        parts * default_lanes(given, given.batch.global / parts, part_replicas, data, device);
    fail(ExitCode::kUsage,
         "numerics.lanes is {}, which parallel.data = {} does not divide; use a number of replicas "
         "that divides {}{}, or, {}",
         lanes, grid.replicas(), lanes / jobs,
         given.parallel.data == 0 ? fmt::format(" (launch {} ranks)",
                                                launchable_ranks(given, grid.ranks(), lanes / jobs))
                                  : "",
         given.batch.global % other == 0
             ? instead("lanes", other, fmt::format("--numerics.lanes={}", other))
             : fmt::format("in a new run, a batch.global (here {}) that {} divides",
                           given.batch.global, grid.replicas()));
  }
  if (shards % grid.tensor != 0) {
    fail(
        ExitCode::kUsage,
        "numerics.shards is {}, which parallel.tensor = {} does not divide; use a number of tensor "
        "ranks that divides {}, or, {}",
        shards, grid.tensor, shards,
        instead("shards", lanes, fmt::format("--numerics.shards={}", grid.tensor)));
  }
  check_batch(given.batch.global, fmt::format("{} lanes", lanes), lanes);
  const std::int64_t microbatch =
      resolve_value("batch.micro", given.batch.micro, stored.microbatch,
                    default_microbatch(given.batch.global / lanes, data, device));
  check_batch(given.batch.global,
              fmt::format("microbatches of {} samples in {} lane{}", microbatch, lanes,
                          lanes == 1 ? "" : "s"),
              microbatch * lanes);
  constexpr std::int64_t kMostMicrobatches = 1'000'000;
  const std::int64_t microbatches = given.batch.global / jobs / microbatch / grid.replicas();
  if (microbatches > kMostMicrobatches) {
    fail(
        ExitCode::kUsage,
        "batch.global is {}, which makes {} microbatches of {} samples on each rank, more than {}; "
        "lower it, or set a larger batch.micro",
        given.batch.global, microbatches, microbatch, kMostMicrobatches);
  }
  return {.lanes = lanes, .shards = shards, .microbatch = microbatch, .parts = parts};
}

}  // namespace strata::plan
