#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/comm/shard_group.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/nn/layer.hpp"
#include "strata/ops/loss.hpp"

namespace strata::nn {

enum class LossKind { kCrossEntropy, kMeanSquaredError };

constexpr auto enum_names(LossKind) {
  return names_in_order("cross_entropy", "mean_squared_error");
}

/// The loss of a model's output, a layer behind the last one that reads the targets. With several
/// PassShape::loss_pieces it is part of the head's passes, which compute it for one piece of the
/// logits after the other. `terms` are of cross-entropy in training; evaluation has none.
class Loss {
 public:
  /// What one microbatch is compared with.
  struct Targets {
    ConstTensorView values;
    /// Samples that count: the first ones.
    std::int64_t valid = 0;
    double gradient_scale = 0.0;
  };

  /// What a pass computes in, as Layer::workspace().
  [[nodiscard]] static std::vector<TensorSpec> workspace(const Port& output, const PassShape& pass,
                                                         const ops::LossTerms& terms);
  /// What lasts until the end of a step of so many microbatches.
  [[nodiscard]] static std::vector<TensorSpec> kept(LossKind kind, const Port& output,
                                                    const PassShape& pass,
                                                    std::int64_t microbatches);

  /// `output`: of the model. Tensors as listed by workspace() and kept().
  Loss(ops::Context& context, comm::ShardGroup& shards, LossKind kind, const ops::LossTerms& terms,
       const Port& output, const PassShape& pass, std::vector<TensorView> workspace,
       const std::vector<TensorView>& kept);

  /// Sets the units of the outputs in the loss of values, 1 each until then. Pre: one of each
  /// output. Does nothing for other losses.
  void set_units(std::span<const double> units);

  /// Of the next passes of a microbatch, by its number. Pre: the step has memory for a microbatch.
  void set_targets(std::int64_t number, const Targets& targets);
  /// Records the loss of a piece of the output's rows, and unless `gradient` is empty computes the
  /// output's gradient there, which may be in place. Communication: where the logits are split, one
  /// all-gather over the tensor group.
  void compute(std::int64_t number, std::int64_t piece, const ConstTensorView& output,
               const TensorView& gradient);
  /// The loss of each microbatch of the step, in order of numbers. Synchronises with the context's
  /// stream. Pre: each was computed. Throws: Error(kData) that names the first target without an
  /// output of the model.
  [[nodiscard]] std::vector<ops::LossSums> sums();

 private:
  /// The index of the first piece of a microbatch.
  [[nodiscard]] std::int64_t first_piece(std::int64_t number) const;
  /// By the parts of each shard; logits that are not split are one.
  void cross_entropy_by_parts(const ConstTensorView& logits, const ConstTensorView& targets,
                              std::int64_t valid_rows, double gradient_scale,
                              const TensorView& gradient, const TensorView& sums,
                              const ops::LossTerms& terms);

  ops::Context& context_;
  comm::ShardGroup& shards_;
  LossKind kind_;
  ops::LossTerms terms_;
  Port output_;
  PassShape pass_;
  std::vector<TensorView> workspace_;
  /// Of each piece of each microbatch.
  TensorView sums_;
  TensorView units_;
  /// By piece, those of a first one.
  std::vector<Targets> targets_;
  device::HostCopy on_host_;
};

}  // namespace strata::nn
