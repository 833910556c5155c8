#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "strata/core/random.hpp"

#include "import/split_text.hpp"

namespace strata::io {

/// The place of each sample of a source in the splits: the train split has the places [0, train),
/// the test split [train, train + test).
class SamplePlaces {
 public:
  /// Keeps the order of the source; samples after the splits are in none.
  static SamplePlaces in_order(const SplitCounts& counts);
  /// Shuffles each split; the first samples of the source are those of train.
  static SamplePlaces shuffled_apart(const SplitCounts& counts, std::uint64_t seed);
  /// Shuffles all samples and divides each class in the ratio of the splits, to within one sample;
  /// every class has a sample in train where the counts allow. `labels`: the class of each sample,
  /// empty for values. Memory: 8 bytes a sample.
  static SamplePlaces shuffled(const SplitCounts& counts, std::int64_t samples,
                               std::span<const std::int32_t> labels, std::uint64_t seed);

  /// The place of a sample; -1 for one that is in no split.
  [[nodiscard]] std::int64_t operator()(std::int64_t sample) const;
  /// The samples in the order of their places. Pre: made by shuffled().
  [[nodiscard]] std::vector<std::int64_t> samples() const;
  [[nodiscard]] bool is_shuffled() const { return train_.has_value(); }

 private:
  SamplePlaces(const SplitCounts& counts, std::optional<std::uint64_t> seed);

  SplitCounts counts_;
  std::optional<Permutation> train_;  ///< of the places of train, and of test
  std::optional<Permutation> test_;
  std::vector<std::int64_t> places_;
};

/// The number of samples of each class; `labels` as of SamplePlaces::shuffled().
[[nodiscard]] std::vector<std::int64_t> counts_of_labels(std::span<const std::int32_t> labels);

}  // namespace strata::io
