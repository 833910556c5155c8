#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/device/buffer.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/nn/stage.hpp"
#include "strata/ops/update.hpp"
#include "strata/optim/buckets.hpp"
#include "strata/optim/parameter_groups.hpp"

namespace strata::optim {

enum class OptimizerKind { kSgd, kAdam, kAdamw, kAdagrad };

constexpr auto enum_names(OptimizerKind) {
  return names_in_order("sgd", "adam", "adamw", "adagrad");
}

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kSgd;
  double momentum = 0.0;
  Switch nesterov = Switch::kOff;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  DecayScope decay_scope = DecayScope::kMatrices;
  std::vector<ParameterGroup> groups;
};

/// The master weights and the optimizer state of what one rank owns (ZeRO stage 1).
class OwnedTensors {
 public:
  /// `states`: tensors of optimizer state. `weights`: the arena of the layout's weights, which
  /// outlives the object; these are the master weights where their dtype is `dtype`. Other memory
  /// is allocated on `device` and starts at zero.
  OwnedTensors(const device::Device& device, const Ownership& ownership, std::int64_t states,
               DType dtype, const TensorView& weights = {});

  /// The allocations of OwnedTensors of weights in `dtype`, which have masters in its
  /// compute_dtype.
  [[nodiscard]] static std::vector<nn::MemoryItem> memory(const Ownership& ownership,
                                                          std::int64_t states, DType dtype);

  [[nodiscard]] const std::vector<OwnedPiece>& pieces() const { return pieces_; }
  /// The master weights of a piece. After writing to them call UpdateRule::round_weights().
  [[nodiscard]] TensorView master(const OwnedPiece& piece) const;
  /// State tensor `index` of a piece; empty where there are fewer.
  [[nodiscard]] TensorView state(std::size_t index, const OwnedPiece& piece) const;
  /// All own state tensors and, where there are, master copies.
  [[nodiscard]] std::vector<TensorView> tensors() const;

 private:
  std::vector<OwnedPiece> pieces_;
  TensorView weights_;  ///< empty where the masters are copies
  device::Buffer state_memory_;
  device::Buffer master_memory_;
  std::vector<TensorView> states_;
  TensorView masters_;  ///< empty where the weights are the master weights
};

/// Updates the master weights of owned elements, each for itself, and rounds them into bfloat16
/// weights.
class UpdateRule {
 public:
  /// Pieces of one bucket that are updated alike and follow each other, with what pads them: zeros,
  /// which every rule keeps.
  struct Run {
    OwnedPiece elements;  ///< as if they were of one parameter
    nn::ParameterRule rule = nn::ParameterRule::kTrained;
    double keep = 0.0;
    double rate = 1.0;  ///< factor of the learning rate
    double decay = 0.0;
  };

  /// `weights`: the arena of the layout's weights, where there is one. It and `owned` outlive the
  /// object.
  UpdateRule(ops::Context& context, const OptimizerOptions& options,
             const nn::ParameterLayout& layout, const OwnedTensors& owned,
             const TensorView& weights = {});

  /// The names of a parameter's state tensors, as in "adam_m".
  [[nodiscard]] static std::vector<std::string> state_names(const OptimizerOptions& options,
                                                            const nn::ParameterSpec& spec);
  /// The state tensors that parameters have: the most of any.
  [[nodiscard]] static std::int64_t states(const OptimizerOptions& options);

  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }
  /// Updates the elements of a run from their gradient. `step` starts at 1.
  void update(const Run& run, const ConstTensorView& gradient, double learning_rate,
              double gradient_scale, std::int64_t step);
  /// Updates the own slice of a bucket; a borrowed bucket is skipped.
  /// Shapes: gradients are the layout's, in compute_dtype of the weights.
  void update(std::size_t bucket, const ConstTensorView& gradients, double learning_rate,
              double gradient_scale, std::int64_t step);
  /// Rounds the master copies into the weights of the own slices; nothing without copies.
  void round_weights();

 private:
  /// The weights that the masters of a piece are rounded into; empty where these are the weights.
  [[nodiscard]] TensorView rounded(const OwnedPiece& piece) const;
  void round(const OwnedPiece& piece);

  ops::Context& context_;
  OptimizerOptions options_;
  const OwnedTensors& owned_;
  TensorView rounded_;  ///< the weights; empty where they are the master weights
  std::vector<Run> runs_;
};

}  // namespace strata::optim
