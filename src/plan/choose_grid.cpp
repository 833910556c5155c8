#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/grid/split.hpp"
#include "strata/plan/replication.hpp"

#include "resolve.hpp"
#include "training_schedule.hpp"

// The grids that ranks allow.
namespace strata::plan {

bool can_launch(const config::RunConfig& config, std::int64_t ranks, std::int64_t lanes) {
  const std::int64_t model_ranks = config.parallel.pipeline * config.parallel.tensor;
  const bool fast = config.numerics.mode == comm::Summation::kLibrary;
  const std::int64_t divided = fast                         ? 0
                               : config.numerics.lanes != 0 ? config.numerics.lanes
                                                            : lanes;
  if (ranks < model_ranks || ranks % model_ranks != 0) {
    return false;
  }
  const std::int64_t replicas = ranks / model_ranks;
  return config.parallel.data != 0
             ? replicas == config.parallel.data
             : (divided == 0 || divided % replicas == 0) &&
                   replication_of(config.parallel.sync).fits(config, replicas);
}

std::vector<grid::Grid> grids_of(std::int64_t ranks, const GridLimits& limits) {
  const auto allows = [](std::int64_t fixed, std::int64_t value) {
    return fixed == 0 || fixed == value;
  };
  std::vector<grid::Grid> grids;
  std::vector<std::int64_t> replicas = grid::divisors_of(ranks);
  std::ranges::reverse(replicas);
  for (const std::int64_t data : replicas) {
    for (const std::int64_t tensor : grid::divisors_of(ranks / data)) {
      const grid::Grid grid{data, ranks / data / tensor, tensor};
      if (limits.lanes % data == 0 && limits.shards % tensor == 0 &&
          grid.pipeline <= limits.layers && allows(limits.data, data) &&
          allows(limits.pipeline, grid.pipeline) && allows(limits.tensor, tensor)) {
        grids.push_back(grid);
      }
    }
  }
  return grids;
}

std::vector<std::int64_t> nearest_launchable(const config::RunConfig& config, std::int64_t ranks,
                                             std::int64_t lanes, std::int64_t step,
                                             std::int64_t most) {
  std::vector<std::int64_t> nearest;
  for (std::int64_t below = ranks / step * step; below > 0 && nearest.empty(); below -= step) {
    if (can_launch(config, below, lanes)) {
      nearest.push_back(below);
    }
  }
  for (std::int64_t above = (ranks / step + 1) * step; above <= most; above += step) {
    if (can_launch(config, above, lanes)) {
      nearest.push_back(above);
      break;
    }
  }
  return nearest;
}

std::string launchable_ranks(const config::RunConfig& config, std::int64_t ranks,
                             std::int64_t lanes) {
  const std::int64_t model_ranks = config.parallel.pipeline * config.parallel.tensor;
  const std::int64_t most = model_ranks * std::max({ranks, lanes, config.numerics.lanes,
                                                    config.parallel.data, std::int64_t{1}});
  return fmt::format(
      "{}", fmt::join(nearest_launchable(config, ranks, lanes, model_ranks, most), " or "));
}

grid::Grid resolve_grid(const config::RunConfig& config, std::int64_t ranks, std::int64_t lanes) {
  grid::Grid grid = config.parallel.grid();
  if (ranks == 0) {
    grid.data = std::max<std::int64_t>(1, grid.data);
    return replication_of(config.parallel.sync).divided(config, grid);
  }
  const std::int64_t model_ranks = grid.pipeline * grid.tensor;
  if (grid.data == 0) {
    grid.data = std::max<std::int64_t>(1, ranks / model_ranks);
  }
  if (grid.ranks() != ranks) {
    const std::string fitting = launchable_ranks(config, ranks, lanes);
    fail(ExitCode::kUsage,
         "the job has {} rank{}, but the grid {} needs {}; launch {} rank{}, or change "
         "parallel.data, parallel.pipeline "
         "or parallel.tensor",
         ranks, ranks == 1 ? "" : "s", grid.text(), grid.ranks(), fitting,
         fitting == "1" ? "" : "s (--ranks=N)");
  }
  return replication_of(config.parallel.sync).divided(config, grid);
}

namespace {

/// The grid with the pipeline stages and tensor ranks of `own`, else the first.
std::optional<grid::Grid> closest_of(const std::vector<grid::Grid>& grids, const grid::Grid& own) {
  const auto kept = std::ranges::find_if(grids, [&](const grid::Grid& grid) {
    return grid.pipeline == own.pipeline && grid.tensor == own.tensor;
  });
  return grids.empty()         ? std::nullopt
         : kept != grids.end() ? std::optional(*kept)
                               : std::optional(grids.front());
}

std::int64_t layers_of(const config::RunConfig& config, const io::DatasetInfo& data) {
  return make_model(config, data, {})->layer_count();
}

void set_grid(const grid::Grid& grid, config::RunConfig& config) {
  config.parallel.data = grid.replicas();
  config.parallel.pipeline = grid.pipeline;
  config.parallel.tensor = grid.tensor;
}

}  // namespace

config::RunConfig with_stored_stages(config::RunConfig config, const VirtualGrid& stored) {
  const auto choose = [](std::int64_t& value, std::int64_t kept) {
    value = value != 0 ? value : std::max<std::int64_t>(1, kept);
  };
  choose(config.parallel.pipeline, stored.pipeline);
  choose(config.parallel.tensor, stored.tensor);
  return config;
}

config::RunConfig with_grid(const config::RunConfig& given, std::int64_t ranks,
                            const io::DatasetInfo& data, const VirtualGrid& stored) {
  const auto& p = given.parallel;
  if (p.pipeline != 0 && p.tensor != 0) {
    return given;
  }
  config::RunConfig config = with_stored_stages(given, stored);
  if (ranks == 0 || stored.lanes == 0 || can_launch(config, ranks, stored.lanes)) {
    return config;
  }
  const std::vector<grid::Grid> grids = grids_of(
      ranks, {.lanes = stored.lanes,
              .shards = stored.shards,
              .layers = std::max<std::int64_t>(1, layers_of(given, data) / chunks_of(given)),
              .data = p.data,
              .pipeline = p.pipeline,
              .tensor = p.tensor});
  if (const auto grid = closest_of(grids, config.parallel.grid())) {
    if (grid->pipeline != config.parallel.pipeline) {
      config.parallel.split = "auto";
      if (p.schedule == pipeline::ScheduleKind::kFile) {
        // A file has a schedule for its own number of stages only.
        config.parallel.schedule = pipeline::ScheduleKind::k1f1b;
      }
    }
    set_grid(*grid, config);
  }
  return config;
}

config::RunConfig evaluation_config(const config::RunConfig& config, std::int64_t ranks,
                                    const io::DatasetInfo& data, const VirtualGrid& of_checkpoint) {
  VirtualGrid stored = of_checkpoint;
  if (stored.lanes == 0) {
    // An imported checkpoint is of no run: any virtual grid fits.
    const std::int64_t stages = std::max<std::int64_t>(1, config.parallel.pipeline);
    const std::int64_t tensor = std::max<std::int64_t>(1, config.parallel.tensor);
    stored.shards = config.numerics.shards > 0 ? config.numerics.shards : tensor;
    const std::int64_t replicas = std::max<std::int64_t>(1, ranks / (stages * tensor));
    stored.lanes = config.numerics.lanes > 0
                       ? config.numerics.lanes
                       : default_lanes(config, config.batch.global, replicas, data);
  }
  config::RunConfig result = config;
  if (of_checkpoint.lanes == 0) {
    result.batch.global = (config.batch.global + stored.lanes - 1) / stored.lanes * stored.lanes;
  }
  result.parallel = {};
  result.local = {};
  result.async = {};
  result.parallel.backward = config.parallel.backward;
  result.parallel.bucket_mib = config.parallel.bucket_mib;
  result.parallel.node_ranks = config.parallel.node_ranks;
  result.numerics.mode = comm::Summation::kInvariant;
  result.numerics.lanes = stored.lanes;
  result.numerics.shards = stored.shards;
  result.numerics.loss_pieces = stored.loss_pieces;
  result.run.cuda_graphs = config::Switch::kOff;
  result.checkpoint.best = config::Best::kOff;
  result.train.patience = 0;
  // The checkpoint's data say what its outputs mean.
  result.data.targets = io::TargetUnits::kAuto;
  const std::int64_t layers = layers_of(result, data);
  const auto grid_of = [&](std::int64_t count, std::int64_t lanes) {
    return closest_of(grids_of(count, {.lanes = lanes, .shards = stored.shards, .layers = layers}),
                      config.parallel.grid());
  };
  const auto grid_for = [&](std::int64_t count) { return grid_of(count, stored.lanes); };
  if (const auto grid = grid_for(ranks)) {
    set_grid(*grid, result);
    return result;
  }
  // Losses are added by microbatch in the order of samples, whatever the lanes. A limit counts
  // global batches, which other lanes may change.
  const bool whole = config.train.evaluate_batches == 0 && of_checkpoint.lanes != 0;
  if (const auto grid = whole ? grid_of(ranks, 0) : std::nullopt) {
    set_grid(*grid, result);
    result.numerics.lanes = grid->data;
    result.batch.micro = stored.microbatch;
    const std::int64_t round = grid->data * stored.microbatch;
    result.batch.global = round * std::max<std::int64_t>(1, config.batch.global / round);
    return result;
  }
  constexpr std::size_t kMostNamed = 8;
  const std::int64_t most = stored.lanes * layers * stored.shards;
  std::vector<std::int64_t> counts;
  for (std::int64_t above = ranks + 1; above <= most && counts.empty(); ++above) {
    if (grid_for(above)) {
      counts.push_back(above);
    }
  }
  for (std::int64_t below = ranks - 1; below >= 1 && counts.size() < kMostNamed; --below) {
    if (grid_for(below)) {
      counts.insert(counts.begin(), below);
    }
  }
  fail(ExitCode::kUsage,
       "no grid of {} ranks fits: data must divide {} lanes, tensor {} shards, and pipeline is at "
       "most {} layers; launch {}",
       ranks, stored.lanes, stored.shards, layers, fmt::join(counts, " or "));
}

}  // namespace strata::plan
