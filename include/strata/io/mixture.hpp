#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/enum_names.hpp"

namespace strata::io {

/// One data set of a mixture.
struct MixtureSet {
  std::filesystem::path master;
  /// Its part, relative to those of the others; nothing: by its size.
  std::optional<double> weight;
};

/// What weights are.
enum class MixtureBy {
  kSamples,  ///< parts of the samples
  kTokens,   ///< parts of the tokens, without padding
  kEpochs    ///< how often each set is read, relative to the others
};
constexpr auto enum_names(MixtureBy) {
  return names_in_order("samples", "tokens", "epochs");
}

/// How sets become a mixture.
struct MixtureRules {
  MixtureBy by = MixtureBy::kSamples;
  /// Sets without a weight have samples^(1 / temperature) as their part of the samples.
  double temperature = 1.0;
};

/// Reads "a.h5:0.7, b.h5:0.3" or "a.h5, b.h5"; a file that exists is that file. Throws:
/// Error(kUsage) for an empty name, a weight that is no number above 0, and where some have weights
/// and others none.
[[nodiscard]] std::vector<MixtureSet> mixture_sets(const std::string& text);

/// Where the samples of a mixed stream come from: a pure function of (seed, place), in memory for
/// the weights alone. In the first B blocks of kBlock places a set has its exact share, rounded up
/// or down, for every B.
class Mixture {
 public:
  static constexpr std::int64_t kBlock = 65536;
  /// The least share of a set.
  static constexpr double kLeastShare = 1.0 / static_cast<double>(kBlock);

  /// Pre: each weight is at least kLeastShare of their sum.
  explicit Mixture(const std::vector<double>& weights);

  /// A set, and a place in the endless stream of its samples.
  struct Place {
    std::int64_t set = 0;
    std::int64_t index = 0;
  };
  [[nodiscard]] Place at(std::uint64_t seed, std::int64_t place) const;
  /// Places of the sets before `set` in the first `blocks` blocks, and of this one with them.
  [[nodiscard]] std::int64_t end(std::int64_t set, std::int64_t blocks) const;
  /// Of the first `blocks` blocks.
  [[nodiscard]] std::int64_t count(std::int64_t set, std::int64_t blocks) const {
    return end(set, blocks) - (set == 0 ? 0 : end(set - 1, blocks));
  }
  [[nodiscard]] std::int64_t sets() const { return std::ssize(ends_); }
  /// A set's part of the samples, of a sum of 1.
  [[nodiscard]] double share(std::int64_t set) const;
  /// As in "0.7, 0.3", the shares; equal for equal mixtures.
  [[nodiscard]] std::string text() const;

 private:
  /// The sums of weights up to and with each set, in 2^40ths.
  std::vector<std::int64_t> ends_;
};

}  // namespace strata::io
