#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "import/sample_source.hpp"

namespace strata::io {

/// Population mean and standard deviation of inputs, statistics_of() values each, or of each of the
/// values that are targets, accumulated in double and in sample order.
/// Source: B. P. Welford, "Note on a method for calculating corrected sums of squares and
/// products", 1962; for blocks, Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm
/// for computing sample variances", 1979.
class Statistics {
 public:
  [[nodiscard]] static Statistics of_inputs(const DatasetInfo& info) {
    return {info.input_dtype, info.input_shape.count(), statistics_of(info.input_shape)};
  }
  [[nodiscard]] static Statistics of_targets(const DatasetInfo& info) {
    return {info.target_dtype, info.target_shape.count(), info.target_shape.count()};
  }

  /// Adds whole samples.
  void add(std::span<const std::byte> samples);
  [[nodiscard]] const std::vector<double>& mean() const { return mean_; }
  [[nodiscard]] std::vector<double> deviation() const;

 private:
  Statistics(DType dtype, std::int64_t elements, std::int64_t statistics);
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
