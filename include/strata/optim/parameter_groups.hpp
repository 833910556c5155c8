#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/nn/name_patterns.hpp"
#include "strata/nn/parameter.hpp"

namespace strata::optim {

/// The tensors that weight decay applies to, before the groups.
enum class DecayScope { kAll, kMatrices };

constexpr auto enum_names(DecayScope) {
  return names_in_order("all", "matrices");
}

/// Factors of the learning rate and of the weight decay for some parameters; those that are not set
/// stay as they are.
struct ParameterGroup {
  nn::NamePatterns names;
  std::optional<double> learning_rate;
  std::optional<double> weight_decay;
};

/// Groups from text as in "*.bias: weight_decay=0; embedding.*: learning_rate=0.1"; nothing where
/// the text has another form.
[[nodiscard]] std::optional<std::vector<ParameterGroup>> parse_groups(std::string_view text);
[[nodiscard]] std::string text_of(const std::vector<ParameterGroup>& groups);

/// The factors of one parameter.
struct UpdateScales {
  double learning_rate = 1.0;
  double weight_decay = 1.0;
};

/// The factors of the last group that sets them, else 1, or 0 for the decay of tensors that are not
/// in its scope.
[[nodiscard]] UpdateScales scales_of(const nn::ParameterSpec& spec, DecayScope decay_scope,
                                     const std::vector<ParameterGroup>& groups);

}  // namespace strata::optim
