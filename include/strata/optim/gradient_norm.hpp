#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "strata/core/reduction_step.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/nn/stage.hpp"
#include "strata/ops/context.hpp"
#include "strata/optim/buckets.hpp"

namespace strata::optim {

/// The squared norm of every placed slice's gradient, with the same bits on every grid: sums over
/// fixed blocks, added in the SumTree of the slice's blocks. Each data rank adds the blocks that it
/// owns; the sums of the nodes that they complete, a few for each piece, are gathered over the data
/// group. The owner counts a tied parameter's gradient.
class GradientNorm {
 public:
  GradientNorm(ops::Context& context, const Ownership& owned);

  /// The allocation of a GradientNorm on its context's device, the same for every data rank.
  [[nodiscard]] static nn::MemoryItem memory(const Ownership& owned);

  /// Sums the blocks of another data rank from now on.
  void assign(std::int64_t data_rank) { owned_.rank = data_rank; }

  /// Enqueues the sums of squares of the own blocks.
  void begin(const ConstTensorView& gradients);
  /// Whether all elements are finite. Waits for the device. Overwrites the sums.
  [[nodiscard]] bool is_finite(const ConstTensorView& tensor);
  /// The sums of the own blocks, in order of the own slices. Pre: the context has been synchronized
  /// since begin().
  [[nodiscard]] std::span<const double> blocks() const;
  /// The sums of the tree nodes that the own blocks complete, then zeros: as many on every rank.
  /// Pre: as blocks().
  [[nodiscard]] std::vector<double> partials() const;
  /// The squared norm of each placed slice of the layout, 0 for borrowed ones. `gathered[r]` are
  /// the partial sums of data rank r.
  [[nodiscard]] std::vector<double> squares(
      std::span<const std::span<const double>> gathered) const;

 private:
  /// A tree node that the blocks of one data rank complete.
  struct Node {
    std::int64_t first_block = 0;  ///< among the rank's blocks
    std::int64_t blocks = 0;
  };

  ops::Context& context_;
  Ownership owned_;
  std::vector<std::vector<Node>> nodes_;  ///< by data rank
  std::int64_t width_ = 0;                ///< nodes of the rank that completes the most
  /// Of the partial sums of all ranks, width_ for each: what brings those of each slice together,
  /// and where its sum is then; nothing for borrowed slices.
  std::vector<ReductionStep> steps_;
  std::vector<std::optional<std::int64_t>> sum_of_;
  device::Buffer memory_;
  TensorView blocks_;
  device::HostCopy on_host_;
};

/// What scales a gradient of norm `norm` down to `limit`; 1 where it is not above, or the limit 0.
[[nodiscard]] inline double clip_scale(double norm, double limit) {
  return limit > 0.0 && norm > limit ? limit / norm : 1.0;
}

}  // namespace strata::optim
