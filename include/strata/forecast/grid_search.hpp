#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "strata/forecast/forecast.hpp"
#include "strata/plan/plan.hpp"

namespace strata::forecast {

/// One grid with what goes with it, and its step.
struct GridChoice {
  /// With the grid, the schedule, batch.micro, train.recompute and parallel.bucket_mib of the
  /// choice; what it leaves to prepare() is auto.
  config::RunConfig config;
  grid::Grid grid;
  std::int64_t lanes = 1;
  std::int64_t shards = 1;
  std::int64_t microbatch = 1;
  std::int64_t chunks = 1;
  std::string schedule;  ///< as in "1f1b"
  nn::Recompute recompute = nn::Recompute::kNone;
  double bucket_mib = 0.0;
  double step_seconds = 0.0;
  double memory_bytes = 0.0;  ///< of the rank that needs most
  double mfu = 0.0;           ///< 0: not known
  /// The virtual grid, if it differs from that of the given config. Empty if the results have the
  /// same bits.
  std::string bits;
};

/// What a search looks at.
struct SearchSpace {
  std::int64_t ranks = 1;
  std::int64_t node_ranks = 1;
  device::DeviceKind device = device::DeviceKind::kCpu;
  plan::VirtualGrid stored;  ///< of the checkpoint that the run continues
  /// Settings that stay as they are, as in "parallel.tensor".
  std::set<std::string> fixed;
};

struct SearchResult {
  std::vector<GridChoice> choices;  ///< that fit, fastest first
  std::int64_t tried = 0;           ///< grids that the ranks and the config allow
  std::int64_t too_large = 0;       ///< of these, without the memory
  /// Of those that do not fit, the one that needs the least memory.
  std::optional<GridChoice> smallest;
};

/// Forecasts every grid that the ranks, the config and the memory of the machine allow. Settings
/// that determine the bits (numerics.lanes, numerics.shards, batch.micro) stay where the config or
/// the checkpoint gives them.
/// Throws: Error(kUsage) where no grid fits, with what would have to give.
[[nodiscard]] SearchResult search_grids(Forecaster& forecaster, const config::RunConfig& given,
                                        const io::DatasetInfo& data, const SearchSpace& space);

/// The Pareto front of time and memory; fastest first.
[[nodiscard]] std::vector<GridChoice> pareto_of(const std::vector<GridChoice>& choices);

}  // namespace strata::forecast
