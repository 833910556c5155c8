#pragma once

#include <numbers>

#include "strata/core/enum_names.hpp"

namespace strata::ops {

/// How the frequencies of rotary angles are lowered for contexts longer than those of the first
/// training.
enum class RotaryScalingKind { kNone, kLinear, kLlama3 };

constexpr auto enum_names(RotaryScalingKind) {
  return names_in_order("none", "linear", "llama3");
}

/// linear divides every frequency by the factor. llama3 divides the frequencies that turn at most
/// `low` times in `context` tokens, keeps those that turn `high` times or more, and interpolates
/// between. Source: Chen et al., "Extending context window of large language models via positional
/// interpolation", arXiv 2306.15595; Grattafiori et al., "The Llama 3 herd of models", arXiv
/// 2407.21783, with the formula of meta-llama/llama-models.
struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::kNone;
  double factor = 1.0;      ///< from 1
  double low = 1.0;         ///< above 0
  double high = 4.0;        ///< above low
  double context = 8192.0;  ///< tokens of a sample in the first training

  [[nodiscard]] constexpr double scaled(double frequency) const {
    if (kind == RotaryScalingKind::kNone) {
      return frequency;
    }
    double kept = 0.0;
    if (kind == RotaryScalingKind::kLlama3) {
      const double turns = context * frequency / (2.0 * std::numbers::pi);
      kept = (turns - low) / (high - low);
      kept = kept < 0.0 ? 0.0 : kept > 1.0 ? 1.0 : kept;
    }
    return kept * frequency + (1.0 - kept) * (frequency / factor);
  }

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

/// Pair i of a head's elements turns by position * scaling.scaled(theta^(-2 i / head_size)).
struct RotaryAngles {
  double theta = 10000.0;
  RotaryScaling scaling;
};

}  // namespace strata::ops
