#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/nn/parameter.hpp"
#include "strata/optim/optimizer.hpp"

namespace strata::plan {

/// What the names of a checkpoint's tensors begin with.
inline constexpr std::string_view kWeightPrefix = "weights/";
inline constexpr std::string_view kStatePrefix = "optimizer/";

/// In the metadata: whether adapters are all that the run trained.
inline constexpr const char* kOnlyAdapters = "only_adapters";

/// What the names of the outer optimizer's state begin with.
inline constexpr std::string_view kOuterPrefix = "outer/";
inline constexpr std::string_view kOuterMomentum = "momentum";
inline constexpr std::string_view kPackingError = "error";
/// The names of an outer optimizer's tensor, as in "outer/momentum/dense1.weight", and of what
/// packing rounded off, as in "outer/error/dense1.weight".
[[nodiscard]] std::string outer_name(std::string_view prefix, std::string_view state,
                                     const nn::ParameterSpec& spec);

/// The name of a parameter's weights, as in "weights/dense1.weight".
[[nodiscard]] std::string weight_name(const nn::ParameterSpec& spec,
                                      const std::string& prefix = "");

/// The names of a parameter's optimizer state, as in "optimizer/adam_m/dense1.weight", in the order
/// of UpdateRule::state_names().
[[nodiscard]] std::vector<std::string> state_names(const nn::ParameterSpec& spec,
                                                   const optim::OptimizerOptions& options,
                                                   const std::string& prefix = "");

}  // namespace strata::plan
