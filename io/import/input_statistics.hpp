#pragma once

#include <cstdint>
#include <vector>

#include "import/sample_source.hpp"

namespace strata::io {

/// Population mean and standard deviation of inputs, statistics_of() values each, accumulated in
/// double and in sample order.
/// Source: B. P. Welford, "Note on a method for calculating corrected sums of squares and
/// products", 1962; for blocks, Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm
/// for computing sample variances", 1979.
class InputStatistics {
 public:
  explicit InputStatistics(const DatasetInfo& info);

  /// Adds the first samples of a batch.
  void add(const SampleBatch& batch, std::int64_t samples);
  [[nodiscard]] const std::vector<double>& mean() const { return mean_; }
  [[nodiscard]] std::vector<double> deviation() const;

 private:
  void add_vector(std::span<const double> values);
  /// `before`: number of elements added to this statistic so far.
  void add_block(std::span<const double> values, double before, std::size_t statistic);

  DType dtype_;
  std::int64_t elements_;
  double count_ = 0;  ///< samples
  std::vector<double> mean_;
  std::vector<double> squares_;  ///< sums of squared differences from the mean
  std::vector<double> values_;
};

}  // namespace strata::io
