#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "strata/core/error.hpp"
#include "strata/core/tensor.hpp"
#include "strata/ops/loss.hpp"

#include "loss/row_loss.hpp"

// Shared by the losses on the CPU.
namespace strata::ops {

/// Checks the samples of so many rows, which may be none.
inline void require_samples(const ConstTensorView& samples, std::int64_t rows) {
  require(samples.empty() ||
              (samples.dtype() == DType::kFloat64 && samples.count() % kSampleElements == 0 &&
               rows % (samples.count() / kSampleElements) == 0),
          "the losses of samples of {} {} for {} rows", samples.shape().text(),
          name_of(samples.dtype()), rows);
}

/// Sums the losses of each sample's valid rows in order; `all_rows`: of all samples; targets are
/// empty for losses of values.
inline void write_samples(std::span<const RowLoss> rows, std::span<const std::int64_t> targets,
                          std::int64_t classes, std::int64_t all_rows, const TensorView& samples) {
  if (samples.empty()) {
    return;
  }
  const std::span<double> to = samples.host<double>();
  std::ranges::fill(to, 0.0);
  const auto each = static_cast<std::size_t>(all_rows / (std::ssize(to) / kSampleElements));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const std::size_t at = row / each * kSampleElements;
    to[at] += rows[row].loss;
    to[at + 1] += targets.empty() || is_target(targets[row], classes) ? 1.0 : 0.0;
  }
}

/// Sums the losses of the valid rows in order and finds the first bad target; targets are empty for
/// losses of values.
inline void write_sums(std::span<const RowLoss> rows, std::span<const std::int64_t> targets,
                       std::int64_t classes, const TensorView& sums) {
  LossSums result;
  for (const RowLoss& row : rows) {
    result.loss += row.loss;
    result.correct += row.correct;
  }
  result.counted = std::ssize(rows) - std::ssize(targets);
  for (std::size_t row = 0; row < targets.size(); ++row) {
    result.counted += is_target(targets[row], classes) ? 1 : 0;
    if (result.bad_row < 0 && is_bad_target(targets[row], classes)) {
      result.bad_row = static_cast<std::int64_t>(row);
      result.bad_label = targets[row];
    }
  }
  const std::span<std::int64_t> to = sums.host<std::int64_t>();
  to[0] = std::bit_cast<std::int64_t>(result.loss);
  to[1] = result.correct;
  to[2] = result.bad_row;
  to[3] = result.bad_label;
  to[4] = result.counted;
}

}  // namespace strata::ops
