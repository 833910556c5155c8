#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
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

std::string launchable_ranks(const config::RunConfig& config, std::int64_t ranks,
                             std::int64_t lanes) {
  const std::int64_t model_ranks = config.parallel.pipeline * config.parallel.tensor;
  std::int64_t below = ranks / model_ranks * model_ranks;
  while (below > 0 && !can_launch(config, below, lanes)) {
    below -= model_ranks;
  }
  const std::int64_t most = model_ranks * std::max({ranks, lanes, config.numerics.lanes,
                                                    config.parallel.data, std::int64_t{1}});
  std::int64_t above = (ranks / model_ranks + 1) * model_ranks;
  while (above <= most && !can_launch(config, above, lanes)) {
    above += model_ranks;
  }
  return below == 0     ? fmt::format("{}", above)
         : above > most ? fmt::format("{}", below)
                        : fmt::format("{} or {}", below, above);
}

grid::Grid resolve_grid(const config::RunConfig& config, std::int64_t ranks, std::int64_t lanes) {
  grid::Grid grid{config.parallel.data, config.parallel.pipeline, config.parallel.tensor};
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
         fitting == "1" ? "" : "s");
  }
  return replication_of(config.parallel.sync).divided(config, grid);
}

namespace {

/// A grid of `ranks` ranks for the virtual grid: `own` with as many replicas as fit, else the one
/// with the most replicas among those that `allowed` accepts.
template <typename Allowed>
std::optional<grid::Grid> grid_of(std::int64_t ranks, const grid::Grid& own,
                                  const VirtualGrid& stored, std::int64_t layers,
                                  const Allowed& allowed) {
  const auto fits = [&](const grid::Grid& grid) {
    return grid.ranks() == ranks && stored.lanes % grid.data == 0 && grid.pipeline <= layers &&
           stored.shards % grid.tensor == 0 && allowed(grid);
  };
  const std::int64_t model_ranks = std::max<std::int64_t>(1, own.pipeline * own.tensor);
  const grid::Grid kept{std::max<std::int64_t>(1, ranks / model_ranks), own.pipeline, own.tensor};
  if (fits(kept)) {
    return kept;
  }
  const std::vector<std::int64_t> all = grid::divisors_of(ranks);
  for (auto replicas = all.rbegin(); replicas != all.rend(); ++replicas) {
    for (const std::int64_t tensor : grid::divisors_of(ranks / *replicas)) {
      const grid::Grid grid{*replicas, ranks / *replicas / tensor, tensor};
      if (fits(grid)) {
        return grid;
      }
    }
  }
  return std::nullopt;
}

/// A file has a schedule for its own number of stages and microbatches only.
constexpr auto kScheduleOfAnyGrid = pipeline::ScheduleKind::k1f1b;

void set_grid(const grid::Grid& grid, config::RunConfig& config) {
  config.parallel.data = grid.replicas();
  config.parallel.pipeline = grid.pipeline;
  config.parallel.tensor = grid.tensor;
}

}  // namespace

config::RunConfig with_grid(const config::RunConfig& given, std::int64_t ranks,
                            const io::DatasetInfo& data, const VirtualGrid& stored) {
  const auto chosen = [](std::int64_t value, std::int64_t kept) {
    return value != 0 ? value : std::max<std::int64_t>(1, kept);
  };
  config::RunConfig config = given;
  config.parallel.pipeline = chosen(given.parallel.pipeline, stored.pipeline);
  config.parallel.tensor = chosen(given.parallel.tensor, stored.tensor);
  if (ranks == 0 || stored.lanes == 0 || can_launch(config, ranks, stored.lanes)) {
    return config;
  }
  config::RunConfig alone = given;
  set_grid({}, alone);
  alone.parallel.split = "auto";
  alone.parallel.schedule = kScheduleOfAnyGrid;
  alone.parallel.chunks = 0;
  alone.parallel.activations = 0;
  alone.parallel.sequence = config::Sequence::kAuto;
  const std::int64_t layers = prepare(alone, 1, data, stored).model->layer_count();
  const auto grid =
      grid_of(ranks, {0, config.parallel.pipeline, config.parallel.tensor}, stored,
              std::max<std::int64_t>(1, layers / chunks_of(given)), [&](const grid::Grid& other) {
                const auto& p = given.parallel;
                return (p.data == 0 || p.data == other.data) &&
                       (p.pipeline == 0 || p.pipeline == other.pipeline) &&
                       (p.tensor == 0 || p.tensor == other.tensor);
              });
  if (grid) {
    config.parallel.split =
        grid->pipeline == config.parallel.pipeline ? given.parallel.split : "auto";
    if (grid->pipeline != config.parallel.pipeline &&
        given.parallel.schedule == pipeline::ScheduleKind::kFile && !config::is_made(given)) {
      config.parallel.schedule = kScheduleOfAnyGrid;
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
    stored.lanes = config.numerics.lanes > 0 ? config.numerics.lanes
                                             : std::max<std::int64_t>(1, ranks / (stages * tensor));
  }
  config::RunConfig result = config;
  if (of_checkpoint.lanes == 0) {
    result.batch.global = (config.batch.global + stored.lanes - 1) / stored.lanes * stored.lanes;
  }
  set_grid({}, result);
  clear_replication(result);
  result.parallel.split = "auto";
  result.parallel.schedule = kScheduleOfAnyGrid;
  result.parallel.chunks = 0;
  result.parallel.activations = 0;
  result.parallel.sequence = config::Sequence::kAuto;
  result.numerics.mode = comm::Summation::kInvariant;
  result.numerics.lanes = stored.lanes;
  result.numerics.shards = stored.shards;
  result.numerics.loss_pieces = stored.loss_pieces;
  result.run.cuda_graphs = config::Switch::kOff;
  result.checkpoint.best = config::Best::kOff;
  result.train.patience = 0;
  const std::int64_t layers = prepare(result, 1, data, stored).model->layer_count();
  const grid::Grid own{0, config.parallel.pipeline, config.parallel.tensor};
  const auto grid_for = [&](std::int64_t count) {
    return grid_of(count, own, stored, layers, [](const grid::Grid&) { return true; });
  };
  if (const auto grid = grid_for(ranks)) {
    set_grid(*grid, result);
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
       "the job has {} ranks, which do not divide a model of {} layers in {} lanes and {} shards; "
       "launch {}",
       ranks, layers, stored.lanes, stored.shards, fmt::join(counts, " or "));
}

}  // namespace strata::plan
