#pragma once

#include <cstdint>
#include <vector>

#include "strata/comm/trace.hpp"
#include "strata/plan/plan.hpp"

namespace strata::forecast {

/// What a rank does in a step besides the passes of its layers, in order.
struct StepTrace {
  /// Of a layer in the backward pass of a lane's last microbatch, once its gradients are complete.
  struct AfterLayer {
    std::int64_t layer = 0;
    std::vector<comm::TraceEvent> events;
  };

  /// Sums of this rank's own lanes.
  std::vector<comm::TraceEvent> own_lanes;
  /// The reduction over the data group, which begins beside the last backward pass.
  std::vector<AfterLayer> reduction;
  std::vector<comm::TraceEvent> finish;
  /// The gradients of a tied table's two uses.
  std::vector<comm::TraceEvent> tied;
  std::vector<comm::TraceEvent> norm;
  std::vector<comm::TraceEvent> update;  ///< starts to gather the weights
  /// The next forward pass, which waits for weights; in layer order.
  std::vector<AfterLayer> gather;
};

/// Consecutive ranks of a group of `ranks`, `stride` apart, that share a node of `node_ranks`.
[[nodiscard]] std::int64_t ranks_in_node(std::int64_t ranks, std::int64_t stride,
                                         std::int64_t node_ranks);

/// The data group of a rank on nodes of `node_ranks` ranks.
[[nodiscard]] comm::GroupSite data_site(const plan::Plan& plan,
                                        const grid::Coordinates& coordinates,
                                        std::int64_t node_ranks);
[[nodiscard]] comm::GroupSite tensor_site(const plan::Plan& plan,
                                          const grid::Coordinates& coordinates,
                                          std::int64_t node_ranks);

/// Runs the reduction, the gradient norm, the update and the gather of a rank on planned memory.
[[nodiscard]] StepTrace trace_step(const plan::Plan& plan, const plan::RankPlan& rank,
                                   std::int64_t node_ranks);

}  // namespace strata::forecast
