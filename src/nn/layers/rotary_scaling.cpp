#include "strata/nn/rotary_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/text.hpp"

namespace strata::nn {

using ops::RotaryScaling;
using ops::RotaryScalingKind;

/// Turns from which yarn keeps a frequency, where a text does not say. Source: Peng et al., "YaRN",
/// arXiv 2309.00071.
constexpr double kYarnFast = 32.0;

namespace {

/// Numbers above 0 with commas between; false where the text is another.
bool read_factors(std::string_view text, ops::PairFactors& factors) {
  const std::vector<std::string> words = split_words(text, ",");
  factors.count = std::ssize(words);
  if (factors.count == 0 || factors.count > ops::PairFactors::kMost ||
      factors.count != 1 + std::ranges::count(text, ',')) {
    return false;
  }
  return std::ranges::all_of(words, [&, at = std::size_t{0}](const std::string& word) mutable {
    double& value = factors.values[at++];
    return parse_double(word, value) && std::isfinite(value) && value > 0.0;
  });
}

std::string text_of_factors(const ops::PairFactors& factors) {
  return fmt::format(
      "{}", fmt::join(factors.values.begin(), factors.values.begin() + factors.count, ","));
}

/// A number behind the others where there is one.
std::string last_text(double number) {
  return number > 0.0 ? fmt::format(":{}", number) : "";
}

}  // namespace

std::optional<RotaryScaling> parse_rotary_scaling(std::string_view text) {
  std::vector<std::string> words = split_words(text, ":");
  const auto kind = words.empty() ? std::nullopt : enum_from_name<RotaryScalingKind>(words[0]);
  if (!kind) {
    return std::nullopt;
  }
  RotaryScaling scaling{.kind = *kind};
  std::vector<double*> numbers;
  if (*kind == RotaryScalingKind::kLinear) {
    numbers = {&scaling.factor};
  } else if (*kind == RotaryScalingKind::kLlama3) {
    numbers = {&scaling.factor, &scaling.low, &scaling.high, &scaling.context};
  } else if (*kind == RotaryScalingKind::kYarn) {
    scaling.high = kYarnFast;
    numbers = {&scaling.factor, &scaling.context, &scaling.high, &scaling.low,
               &scaling.attention_factor};
    if (words.size() == 3 || words.size() == 5) {
      numbers.resize(words.size() - 1);
    }
  } else if (*kind == RotaryScalingKind::kLongrope) {
    if (words.size() < 5 || !read_factors(words[3], scaling.factors) ||
        !read_factors(words[4], scaling.long_factors)) {
      return std::nullopt;
    }
    words.erase(words.begin() + 3, words.begin() + 5);
    numbers = {&scaling.factor, &scaling.context, &scaling.attention_factor};
    numbers.resize(std::min<std::size_t>(numbers.size(), words.size() - 1));
  }
  if (words.size() != 1 + numbers.size()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!parse_double(words[i + 1], *numbers[i]) || !std::isfinite(*numbers[i])) {
      return std::nullopt;
    }
  }
  const bool allowed = scaling.factor >= 1.0 && scaling.low > 0.0 && scaling.high > scaling.low &&
                       scaling.context >= 1.0 && scaling.context <= 0x1p31 &&
                       scaling.context == std::floor(scaling.context) &&
                       scaling.attention_factor >= 0.0 &&
                       scaling.factors.count == scaling.long_factors.count &&
                       (*kind != RotaryScalingKind::kLongrope || scaling.context >= 2.0);
  return allowed ? std::optional(scaling) : std::nullopt;
}

std::string text_of(const RotaryScaling& scaling) {
  const std::string_view name = name_of(scaling.kind);
  switch (scaling.kind) {
    case RotaryScalingKind::kLinear:
      return fmt::format("{}:{}", name, scaling.factor);
    case RotaryScalingKind::kLlama3:
      return fmt::format("{}:{}:{}:{}:{}", name, scaling.factor, scaling.low, scaling.high,
                         scaling.context);
    case RotaryScalingKind::kYarn:
      return fmt::format("{}:{}:{}:{}:{}{}", name, scaling.factor, scaling.context, scaling.high,
                         scaling.low, last_text(scaling.attention_factor));
    case RotaryScalingKind::kLongrope:
      return fmt::format("{}:{}:{}:{}:{}{}", name, scaling.factor, scaling.context,
                         text_of_factors(scaling.factors), text_of_factors(scaling.long_factors),
                         last_text(scaling.attention_factor));
    default:
      return std::string(name);
  }
}

}  // namespace strata::nn
