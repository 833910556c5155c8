#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "strata/core/tensor.hpp"
#include "strata/ops/loss.hpp"

#include "loss/row_loss.hpp"

// What operations that give a loss share on a CPU.
namespace strata::ops {

/// Adds what the rows gave, in their order, and finds the first that has a target outside
/// [0, classes); no targets: empty.
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
