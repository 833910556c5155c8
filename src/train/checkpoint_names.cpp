#include "strata/train/checkpoint_names.hpp"

#include <fmt/format.h>

namespace strata::train {

std::string weight_name(const nn::ParameterSpec& spec) {
  return fmt::format("{}{}", kWeightPrefix, spec.name);
}

std::vector<std::string> state_names(const nn::ParameterSpec& spec,
                                     const optim::OptimizerOptions& options) {
  std::vector<std::string> names = optim::Optimizer::state_names(options, spec.rule);
  for (std::string& name : names) {
    name = fmt::format("{}{}/{}", kStatePrefix, name, spec.name);
  }
  return names;
}

}  // namespace strata::train
