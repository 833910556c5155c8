#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/device/buffer.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/nn/stage.hpp"
#include "strata/ops/context.hpp"
#include "strata/optim/buckets.hpp"

namespace strata::optim {

/// The squared norm of every placed slice's gradient, with the same bits on every grid: sums over
/// fixed blocks, added in block order. Each data rank sums the blocks that it owns; the partial
/// sums are gathered over the data group. The owner counts a tied parameter's gradient.
class GradientNorm {
 public:
  GradientNorm(ops::Context& context, const nn::ParameterLayout& layout, const BucketPlan& plan,
               std::int64_t data_rank);

  /// The allocation of a GradientNorm on its context's device.
  [[nodiscard]] static nn::MemoryItem memory(const BucketPlan& plan);

  /// Sums the blocks of another data rank from now on.
  void assign(std::int64_t data_rank) { data_rank_ = data_rank; }

  /// Enqueues the sums of squares of the own blocks.
  void begin(const ConstTensorView& gradients);
  /// Whether all elements are finite. Waits for the device. Overwrites the partial sums.
  [[nodiscard]] bool is_finite(const ConstTensorView& tensor);
  /// The own partial sums, the same number on every rank: blocks of the own slices in order, then
  /// unused ones. Pre: the context has been synchronized
  /// since begin().
  [[nodiscard]] std::span<const double> partials() const;
  /// The squared norm of each placed slice of the layout, 0 for borrowed ones. `gathered[r]` are
  /// the partial sums of data rank r.
  [[nodiscard]] std::vector<double> squares(
      std::span<const std::span<const double>> gathered) const;

 private:
  ops::Context& context_;
  const nn::ParameterLayout& layout_;
  const BucketPlan& plan_;
  std::int64_t data_rank_;
  device::Buffer memory_;
  TensorView partials_;
  device::HostCopy on_host_;
};

/// What scales a gradient of norm `norm` down to `limit`; 1 where it is not above, or the limit 0.
[[nodiscard]] inline double clip_scale(double norm, double limit) {
  return limit > 0.0 && norm > limit ? limit / norm : 1.0;
}

}  // namespace strata::optim
