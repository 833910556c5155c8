#include "strata/plan/checkpoint_names.hpp"

#include <fmt/format.h>

namespace strata::plan {

std::string outer_name(std::string_view prefix, std::string_view state,
                       const nn::ParameterSpec& spec) {
  return fmt::format("{}{}/{}", prefix, state, spec.name);
}

std::string weight_name(const nn::ParameterSpec& spec, const std::string& prefix) {
  return fmt::format("{}{}{}", prefix, kWeightPrefix, spec.name);
}

std::vector<std::string> state_names(const nn::ParameterSpec& spec,
                                     const optim::OptimizerOptions& options,
                                     const std::string& prefix) {
  std::vector<std::string> names = optim::UpdateRule::state_names(options, spec);
  for (std::string& name : names) {
    name = fmt::format("{}{}{}/{}", prefix, kStatePrefix, name, spec.name);
  }
  return names;
}

}  // namespace strata::plan
