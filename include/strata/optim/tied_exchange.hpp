#pragma once

#include <cstdint>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/device/buffer.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/nn/stage.hpp"
#include "strata/ops/context.hpp"
#include "strata/optim/buckets.hpp"

namespace strata::optim {

/// Combines the two uses of tied parameters, by the stage that owns and the stage that borrows
/// them: sums the gradients before the update and copies the weights after it, between ranks that
/// own the same slices. On one stage the same additions run in place, so the sums have the same
/// bits on any number of stages. Other stages do nothing.
class TiedExchange {
 public:
  /// Ranks of the pipeline group; equal where one stage owns and borrows.
  struct Stages {
    std::int64_t owner = 0;
    std::int64_t borrower = 0;
  };

  /// `weights_dtype`: of the run; gradients are in its compute_dtype. `plan` outlives the object.
  /// Pre: the owner's layout shares the parameters that the borrower's layout borrows.
  TiedExchange(ops::Context& context, comm::Communicator& pipeline_group,
               const nn::ParameterLayout& layout, const BucketPlan& plan, std::int64_t data_rank,
               const Stages& stages, DType weights_dtype);

  /// The allocation of a TiedExchange of this pipeline rank, the same for every data rank.
  [[nodiscard]] static nn::MemoryItem memory(const BucketPlan& plan, std::int64_t pipeline_rank,
                                             const Stages& stages, DType weights_dtype);
  /// Exchanges the slices of another data rank from now on.
  void assign(std::int64_t data_rank);

  /// shared += borrowed in the own slices of the gradients. Pre: both are reduced over the data
  /// group. Communication: between two stages, one message per bucket from the borrower to the
  /// owner. Returns: seconds spent waiting for it.
  double combine(const TensorView& gradients);

  /// Copies the own slices of the updated weights from the owner to the borrower, whose data group
  /// then gathers them. Nothing where one stage owns and borrows, which has a single copy of the
  /// weights. Communication: one message per bucket from the owner to the borrower.
  /// Returns: seconds spent waiting for it.
  double return_weights(const TensorView& weights);

 private:
  /// Messages in flight to the owner; each has its own receive buffer.
  static constexpr std::int64_t kInFlight = 4;

  [[nodiscard]] bool spans_stages() const { return stages_.owner != stages_.borrower; }
  [[nodiscard]] bool owns() const { return group_.rank() == stages_.owner; }
  [[nodiscard]] bool borrows() const { return group_.rank() == stages_.borrower; }
  void add(const TensorView& into, const TensorView& from);
  double receive_and_add(const TensorView& gradients);

  ops::Context& context_;
  comm::Communicator& group_;
  Stages stages_;
  const BucketPlan& plan_;
  /// The own slices in the arena, bucket by bucket, without empty ones.
  std::vector<grid::Range> shared_;
  std::vector<grid::Range> borrowed_;
  device::Buffer receive_memory_;
  std::vector<TensorView> receive_slots_;
};

}  // namespace strata::optim
