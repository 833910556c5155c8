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

/// Brings the two uses of tied parameters together, those of the stage that owns them and of the
/// stage that borrows them, among the ranks that own the same slices: gradients before the update,
/// weights after it. On one stage the same additions are done in place, so that the sums have the
/// same bits on any number of stages. Stages that neither own nor borrow do nothing.
class TiedExchange {
 public:
  /// Ranks of the pipeline group; equal where one stage owns and borrows.
  struct Stages {
    std::int64_t owner = 0;
    std::int64_t borrower = 0;
  };

  /// `weights_dtype` is that of the run; gradients are in its compute_dtype. `plan` stays for the
  /// exchange's life. Pre: the owner's layout shares what the borrower's borrows.
  TiedExchange(ops::Context& context, comm::Communicator& pipeline_group,
               const nn::ParameterLayout& layout, const BucketPlan& plan, std::int64_t data_rank,
               const Stages& stages, DType weights_dtype);

  /// The bytes that a TiedExchange of this pipeline rank allocates.
  [[nodiscard]] static nn::MemoryItem memory(const BucketPlan& plan, std::int64_t data_rank,
                                             std::int64_t pipeline_rank, const Stages& stages,
                                             DType weights_dtype);

  /// What a TiedExchange of this pipeline rank sends in a step.
  [[nodiscard]] static nn::LayerTraffic traffic(const BucketPlan& plan, std::int64_t data_rank,
                                                std::int64_t pipeline_rank, const Stages& stages,
                                                DType weights_dtype);

  /// shared += borrowed in the own slices of the gradients, once both are summed over the data
  /// group. Communication: where two stages share, a message for each bucket from the borrower to
  /// the owner. Returns: seconds spent waiting for it.
  double combine(const TensorView& gradients);

  /// Copies the own slices of the updated weights from the owner to the borrower, whose data group
  /// then gathers them like its others. Nothing where one stage owns and borrows: that has no
  /// second copy of the weights. Communication: a message for each bucket from the owner to the
  /// borrower. Returns: seconds spent waiting for it.
  double hand_back(const TensorView& weights);

 private:
  /// Messages in flight to the owner; each has its own receive memory.
  static constexpr std::int64_t kInFlight = 4;

  [[nodiscard]] bool spans_stages() const { return stages_.owner != stages_.borrower; }
  [[nodiscard]] bool owns() const { return group_.rank() == stages_.owner; }
  [[nodiscard]] bool borrows() const { return group_.rank() == stages_.borrower; }
  void add(const TensorView& into, const TensorView& from);
  double receive_and_add(const TensorView& gradients);

  ops::Context& context_;
  comm::Communicator& group_;
  Stages stages_;
  /// The own slices in the arena, bucket by bucket; those without elements are left out.
  std::vector<grid::Range> shared_;
  std::vector<grid::Range> borrowed_;
  device::Buffer receive_memory_;
  std::vector<TensorView> receive_slots_;
};

}  // namespace strata::optim
