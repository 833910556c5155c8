#pragma once

#include <cstdint>
#include <vector>

#include "strata/comm/trace.hpp"
#include "strata/nn/layer_trace.hpp"
#include "strata/plan/plan.hpp"

namespace strata::plan {

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

/// The group of a rank along an axis, on nodes of `node_ranks` ranks.
[[nodiscard]] comm::GroupSite group_site(const Plan& plan, const grid::Coordinates& coordinates,
                                         grid::Axis axis, std::int64_t node_ranks);

/// The passes of layers that do the same.
struct PassTrace {
  nn::LayerTrace trace;
  std::int64_t layers = 0;  ///< of the rank
};

/// Runs the passes of a rank's layers, for one microbatch of each concurrent lane, on planned
/// memory.
[[nodiscard]] std::vector<PassTrace> trace_passes(const Plan& plan, const RankPlan& rank,
                                                  std::int64_t node_ranks);

/// Runs the reduction, the gradient norm, the update and the gather of a rank on planned memory.
[[nodiscard]] StepTrace trace_step(const Plan& plan, const RankPlan& rank, std::int64_t node_ranks);

}  // namespace strata::plan
