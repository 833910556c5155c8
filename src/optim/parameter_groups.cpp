#include "strata/optim/parameter_groups.hpp"

#include <cmath>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::optim {
namespace {

constexpr std::string_view kLearningRate = "learning_rate";
constexpr std::string_view kWeightDecay = "weight_decay";

/// Sets one factor from "name=number". Returns: whether the word has this form.
bool set_factor(ParameterGroup& group, std::string_view word) {
  const std::size_t equals = std::min(word.find('='), word.size());
  const std::string_view name = word.substr(0, equals);
  double value = 0.0;
  if (equals == word.size() || !parse_double(word.substr(equals + 1), value) ||
      !std::isfinite(value) || value < 0.0 || (name != kLearningRate && name != kWeightDecay)) {
    return false;
  }
  (name == kLearningRate ? group.learning_rate : group.weight_decay) = value;
  return true;
}

}  // namespace

std::optional<std::vector<ParameterGroup>> parse_groups(std::string_view text) {
  std::vector<ParameterGroup> groups;
  for (const std::string& part : split_words(text, ";")) {
    const std::size_t colon = std::min(part.find(':'), part.size());
    ParameterGroup group{.names = nn::NamePatterns(std::string_view(part).substr(0, colon)),
                         .learning_rate = {},
                         .weight_decay = {}};
    const std::vector<std::string> factors =
        split_words(std::string_view(part).substr(std::min(colon + 1, part.size())));
    if (group.names.empty() || factors.empty()) {
      return std::nullopt;
    }
    for (const std::string& factor : factors) {
      if (!set_factor(group, factor)) {
        return std::nullopt;
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

std::string text_of(const std::vector<ParameterGroup>& groups) {
  std::string text;
  for (const ParameterGroup& group : groups) {
    text += fmt::format("{}{}:", text.empty() ? "" : "; ", group.names.text());
    if (group.learning_rate) {
      text += fmt::format(" {}={}", kLearningRate, *group.learning_rate);
    }
    if (group.weight_decay) {
      text += fmt::format(" {}={}", kWeightDecay, *group.weight_decay);
    }
  }
  return text;
}

UpdateScales scales_of(const nn::ParameterSpec& spec, DecayScope decay_scope,
                       const std::vector<ParameterGroup>& groups) {
  const bool decays = decay_scope == DecayScope::kAll || nn::is_matrix(spec);
  UpdateScales scales{.learning_rate = 1.0, .weight_decay = decays ? 1.0 : 0.0};
  for (const ParameterGroup& group : groups) {
    if (group.names.matches(spec.name)) {
      scales.learning_rate = group.learning_rate.value_or(scales.learning_rate);
      scales.weight_decay = group.weight_decay.value_or(scales.weight_decay);
    }
  }
  return scales;
}

}  // namespace strata::optim
