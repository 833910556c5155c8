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

/// Runs the passes of one layer of a stage in training on a planned context. `replicas`: ranks of
/// the data group, which matter where layers join lanes; `accumulate`: whether weight gradients are
/// added to others. Allocates no memory for tensors.
[[nodiscard]] LayerTrace trace_layer(const Model& model, std::int64_t layer, const StageSpec& stage,
                                     std::int64_t replicas, ops::Accumulate accumulate);

/// Equal for layers whose traces are equal.
[[nodiscard]] std::string trace_key(const Model& model, std::int64_t layer);

}  // namespace strata::nn
