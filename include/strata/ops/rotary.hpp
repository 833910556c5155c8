#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "strata/core/enum_names.hpp"

namespace strata::ops {

/// How the frequencies of rotary angles are lowered for contexts longer than those of the first
/// training.
enum class RotaryScalingKind { kNone, kLinear, kLlama3, kYarn, kLongrope };

constexpr auto enum_names(RotaryScalingKind) {
  return names_in_order("none", "linear", "llama3", "yarn", "longrope");
}

/// Pairs of a head between which yarn interpolates: up to `first` it keeps the frequencies, from
/// `last` on it divides them.
struct RotaryBand {
  double first = 0.0;
  double last = 0.0;
};

/// A number for each pair of a head's elements that turn. A kernel takes it by value.
struct PairFactors {
  static constexpr std::int64_t kMost = 128;

  std::int64_t count = 0;
  std::array<double, kMost> values{};

  friend bool operator==(const PairFactors&, const PairFactors&) = default;
};

/// linear divides every frequency by the factor. llama3 divides the frequencies that turn at most
/// `low` times in `context` tokens, keeps those that turn `high` times or more, and interpolates
/// between, by the number of turns. yarn does so by the index of the pair, and multiplies cosines
/// and sines by magnitude(). longrope divides each pair's frequency by its factor, and has a
/// magnitude too. Source: Chen et al., "Extending context window of large language
/// models via positional interpolation", arXiv 2306.15595; Grattafiori et al., "The Llama 3 herd of
/// models", arXiv 2407.21783, with the formula of meta-llama/llama-models; Peng et al., "YaRN",
/// arXiv 2309.00071, with whole pairs as bounds, as in Hugging Face's transformers; Ding et al.,
/// "LongRoPE", arXiv 2402.13753, with the magnitude of Abdin et al., "Phi-3", arXiv 2404.14219.
struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::kNone;
  double factor = 1.0;            ///< from 1
  double low = 1.0;               ///< above 0
  double high = 4.0;              ///< above low
  double context = 8192.0;        ///< tokens of a sample in the first training
  double attention_factor = 0.0;  ///< of yarn and longrope; 0: magnitude() has the formula
  PairFactors factors;            ///< of longrope, in samples of at most `context` tokens
  PairFactors long_factors;       ///< of longrope, in longer samples

  /// The frequency that a pair of elements turns with. `band`: RotaryAngles::band().
  [[nodiscard]] constexpr double scaled(double frequency, double pair,
                                        const RotaryBand& band) const {
    if (kind == RotaryScalingKind::kNone) {
      return frequency;
    }
    if (kind == RotaryScalingKind::kLongrope) {
      return frequency / factors.values[static_cast<std::size_t>(pair)];
    }
    double kept = 0.0;
    if (kind == RotaryScalingKind::kLlama3) {
      const double turns = context * frequency / (2.0 * std::numbers::pi);
      kept = (turns - low) / (high - low);
    } else if (kind == RotaryScalingKind::kYarn) {
      kept = 1.0 - (pair - band.first) / (band.last - band.first);
    }
    kept = kept < 0.0 ? 0.0 : kept > 1.0 ? 1.0 : kept;
    return kept * frequency + (1.0 - kept) * (frequency / factor);
  }

  /// What cosines and sines are multiplied by.
  [[nodiscard]] double magnitude() const {
    if (kind != RotaryScalingKind::kYarn && kind != RotaryScalingKind::kLongrope) {
      return 1.0;
    }
    return attention_factor > 0.0 ? attention_factor
           : kind == RotaryScalingKind::kYarn
               ? 0.1 * std::log(factor) + 1.0
               : std::sqrt(1.0 + std::log(factor) / std::log(context));
  }

  /// What a model computes whose samples have so many tokens: `factors` are those that it needs.
  [[nodiscard]] RotaryScaling in_samples_of(double tokens) const {
    RotaryScaling chosen = *this;
    chosen.factors = tokens > context ? long_factors : factors;
    return chosen;
  }

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

/// Pair i of a head's elements, i and i + rotated / 2, turns by position * scaling.scaled(theta^(-2
/// i / rotated)).
struct RotaryAngles {
  double theta = 10000.0;  ///< above 0; above 1 with yarn
  RotaryScaling scaling;
  double share = 1.0;  ///< of a head's elements, the first ones; the others do not turn

  /// The elements of a head that turn.
  [[nodiscard]] constexpr std::int64_t rotated(std::int64_t head_size) const {
    return static_cast<std::int64_t>(share * static_cast<double>(head_size));
  }

  /// yarn's pairs that turn `high` and `low` times in the context, as whole numbers.
  [[nodiscard]] RotaryBand band(std::int64_t head_size) const {
    if (scaling.kind != RotaryScalingKind::kYarn) {
      return {};
    }
    const auto elements = static_cast<double>(rotated(head_size));
    const auto pair_of = [&](double turns) {
      return elements * std::log(scaling.context / (2.0 * std::numbers::pi * turns)) /
             (2.0 * std::log(theta));
    };
    const double first = std::max(std::floor(pair_of(scaling.high)), 0.0);
    // At least one step, where both are one pair.
    constexpr double kStep = 0.001;
    return {first,
            std::max(std::min(std::ceil(pair_of(scaling.low)), elements - 1.0), first + kStep)};
  }
};

}  // namespace strata::ops
