#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/comm/trace.hpp"
#include "strata/nn/stage.hpp"

namespace strata::nn {

/// What a rank does for one microbatch, or one of each concurrent lane, in one layer.
struct LayerTrace {
  std::vector<comm::TraceEvent> forward;  ///< of the last layer with the loss
  std::vector<comm::TraceEvent> backward_input;
  std::vector<comm::TraceEvent> backward_weight;  ///< empty with BackwardOrder::kFused
};

/// The groups of a traced layer.
struct LayerSites {
  comm::GroupSite tensor{.axis = grid::Axis::kTensor};
  comm::GroupSite data;  ///< matters where layers join lanes
  comm::Summation summation = comm::Summation::kInvariant;
};

/// Runs the passes of one layer of a stage in training on a planned context. `accumulate`: whether
/// weight gradients are added to others. Allocates no memory for tensors.
/// Pre: the sites agree with the stage's shards and lanes.
[[nodiscard]] LayerTrace trace_layer(const Model& model, std::int64_t layer, const StageSpec& stage,
                                     const LayerSites& sites, ops::Accumulate accumulate);

/// Equal for layers whose traces are equal.
[[nodiscard]] std::string trace_key(const Model& model, std::int64_t layer);

}  // namespace strata::nn
