#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "strata/core/tensor.hpp"
#include "strata/ops/loss.hpp"

#include "loss/row_loss.hpp"

// Shared by the losses on the CPU.
namespace strata::ops {

/// Sums the rows' losses in order and finds the first target outside [0, classes); targets may be
/// empty.
inline void write_sums(std::span<const RowLoss> rows, std::span<const std::int64_t> targets,
                       std::int64_t classes, const TensorView& sums) {
  LossSums result;
  for (const RowLoss& row : rows) {
    result.loss += row.loss;
    result.correct += row.correct;
  }
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (!is_target(targets[row], classes)) {
      result.bad_row = static_cast<std::int64_t>(row);
      result.bad_label = targets[row];
      break;
    }
  }
  const std::span<std::int64_t> to = sums.host<std::int64_t>();
  to[0] = std::bit_cast<std::int64_t>(result.loss);
  to[1] = result.correct;
  to[2] = result.bad_row;
  to[3] = result.bad_label;
}

}  // namespace strata::ops
