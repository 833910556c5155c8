#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace strata::train {

/// How far predicted values are off.
struct ValueFigures {
  double mean_absolute_error = 0.0;
  double root_mean_square_error = 0.0;
  /// 1 - (sum of squared errors) / (sum of squared distances of the targets from their mean), the
  /// mean over a sample's targets; NaN where a target has one value only.
  double r2 = 0.0;
};

/// The errors of predicted values, added in the order of samples.
class ValueErrors {
 public:
  explicit ValueErrors(std::size_t targets) : targets_(targets) {}

  /// Adds one sample. Pre: one prediction and one value for each target.
  void add(std::span<const double> predictions, std::span<const double> values);
  /// Pre: add() was called.
  [[nodiscard]] ValueFigures figures() const;

 private:
  struct Target {
    double absolute = 0.0;
    double squares = 0.0;
    double mean = 0.0;    ///< of the values
    double spread = 0.0;  ///< sum of their squared distances from it
  };

  std::vector<Target> targets_;
  double samples_ = 0.0;
};

/// The area under the receiver operating characteristic: the share of pairs of a sample of class 1
/// and one of class 0 in which the first has the higher score; equal scores count half. Nothing
/// where a class has no samples or a score is NaN. Shapes: one score for each label, 0 or 1.
[[nodiscard]] std::optional<double> area_under_curve(std::span<const double> scores,
                                                     std::span<const std::int64_t> labels);

}  // namespace strata::train
