#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/nn/parameter.hpp"
#include "strata/ops/context.hpp"
#include "strata/optim/buckets.hpp"

namespace strata::optim {

/// The squared norm of every placed slice's gradient, the same bits on every grid: sums over fixed
/// blocks, added in block order. Each data rank sums the blocks that it owns; the partial sums are
/// gathered over the data group. A borrowed parameter's gradient counts where it is owned.
class GradientNorm {
 public:
  GradientNorm(const nn::ParameterLayout& layout, const BucketPlan& plan, std::int64_t data_ranks);

  /// Doubles that each rank contributes, equal on all ranks.
  [[nodiscard]] std::int64_t partial_count() const { return partial_count_; }
  /// Sums the squares of the own blocks. Shapes: out holds partial_count().
  void partials(ops::Context& context, const ConstTensorView& gradients, std::int64_t data_rank,
                std::span<double> out) const;
  /// The squared norm of each placed slice of the layout, 0 of borrowed ones, from the partials of
  /// all data ranks: `gathered[r]`.
  [[nodiscard]] std::vector<double> squares(
      std::span<const std::span<const double>> gathered) const;

 private:
  const nn::ParameterLayout& layout_;
  const BucketPlan& plan_;
  std::int64_t partial_count_ = 0;
};

}  // namespace strata::optim
