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

/// The cost of training on one sample in each layer, in units of a floating-point operation of a
/// product: an element that another operation moves counts as 16. From traces without
/// recomputation.
[[nodiscard]] std::vector<double> layer_costs(const Model& model);

/// Floating-point operations of the matrix products that training on one sample needs, without
/// recomputation. A product of m x k by k x n counts 2 m k n, backward counts twice forward, and
/// causal attention counts the half of the scores that it keeps.
[[nodiscard]] double training_flops(const Model& model);

}  // namespace strata::nn
