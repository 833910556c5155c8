#include "strata/train/figures.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "strata/core/error.hpp"

namespace strata::train {

void ValueErrors::add(std::span<const double> predictions, std::span<const double> values) {
  require(predictions.size() == targets_.size() && values.size() == targets_.size(),
          "{} predictions and {} values of {} targets", predictions.size(), values.size(),
          targets_.size());
  samples_ += 1.0;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    Target& target = targets_[i];
    const double error = predictions[i] - values[i];
    target.absolute += std::abs(error);
    target.squares += error * error;
    const double before = values[i] - target.mean;
    target.mean += before / samples_;
    target.spread += before * (values[i] - target.mean);
  }
}

ValueFigures ValueErrors::figures() const {
  ValueFigures sums;
  for (const Target& target : targets_) {
    sums.mean_absolute_error += target.absolute;
    sums.root_mean_square_error += target.squares;
    sums.r2 += target.spread > 0.0 ? 1.0 - target.squares / target.spread
                                   : std::numeric_limits<double>::quiet_NaN();
  }
  const auto targets = static_cast<double>(targets_.size());
  return {.mean_absolute_error = sums.mean_absolute_error / samples_ / targets,
          .root_mean_square_error = std::sqrt(sums.root_mean_square_error / samples_ / targets),
          .r2 = sums.r2 / targets};
}

std::optional<double> area_under_curve(std::span<const double> scores,
                                       std::span<const std::int64_t> labels) {
  if (std::ranges::any_of(scores, [](double score) { return std::isnan(score); })) {
    return std::nullopt;
  }
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return scores[i]; });
  // Twice the pairs, so that all sums are whole numbers.
  std::int64_t won = 0;
  std::int64_t negatives = 0;
  for (std::size_t begin = 0; begin < order.size();) {
    std::int64_t equal_negatives = 0;
    std::int64_t equal_positives = 0;
    const double score = scores[order[begin]];
    for (; begin < order.size() && scores[order[begin]] == score; ++begin) {
      (labels[order[begin]] == 0 ? equal_negatives : equal_positives) += 1;
    }
    won += equal_positives * (2 * negatives + equal_negatives);
    negatives += equal_negatives;
  }
  const std::int64_t positives = std::ssize(order) - negatives;
  if (positives == 0 || negatives == 0) {
    return std::nullopt;
  }
  return static_cast<double>(won) / 2.0 / static_cast<double>(positives) /
         static_cast<double>(negatives);
}

}  // namespace strata::train
