#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "strata/core/tensor.hpp"
#include "strata/ops/loss.hpp"

#include "loss/row_loss.hpp"

// Shared by the losses on the CPU.
namespace strata::ops {

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
