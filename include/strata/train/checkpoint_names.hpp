#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/nn/parameter.hpp"
#include "strata/optim/optimizer.hpp"

namespace strata::train {

/// What the names of a checkpoint's tensors begin with.
inline constexpr std::string_view kWeightPrefix = "weights/";
inline constexpr std::string_view kStatePrefix = "optimizer/";

/// In the metadata: whether adapters are all that the run trained.
inline constexpr const char* kOnlyAdapters = "only_adapters";

/// The name of a parameter's weights, as in "weights/dense1.weight".
[[nodiscard]] std::string weight_name(const nn::ParameterSpec& spec);

/// The names of a parameter's optimizer state, as in "optimizer/adam_m/dense1.weight", in the order
/// of Optimizer::state_names().
[[nodiscard]] std::vector<std::string> state_names(const nn::ParameterSpec& spec,
                                                   const optim::OptimizerOptions& options);

}  // namespace strata::train
