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

/// kAuto: left open in a config, for prepare() to choose; an Optimizer has another kind.
enum class OptimizerKind { kAuto, kSgd, kAdam, kAdamw, kAdagrad };

constexpr auto enum_names(OptimizerKind) {
  return names_in_order("auto", "sgd", "adam", "adamw", "adagrad");
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

  /// Of an optimizer that holds master weights and updates nothing.
  [[nodiscard]] static OptimizerOptions stateless() { return {.kind = OptimizerKind::kSgd}; }
};

/// Updates the slices that this rank owns and keeps optimizer state only for them (ZeRO stage 1).
/// It updates master weights: the weights themselves or, for bfloat16 weights, float32 copies,
/// which it rounds into the weights.
class Optimizer {
 public:
  /// `weights` is the arena of the layout's weights and outlives the optimizer. Master copies of
  /// bfloat16 weights start at zero.
  Optimizer(ops::Context& context, const OptimizerOptions& options,
            const nn::ParameterLayout& layout, const BucketPlan& plan, std::int64_t data_rank,
            const TensorView& weights);

  /// The names of a parameter's state tensors, as in "adam_m".
  [[nodiscard]] static std::vector<std::string> state_names(
      const OptimizerOptions& options, nn::ParameterRule rule = nn::ParameterRule::kTrained);
  /// The allocations of an Optimizer of `dtype` weights.
  [[nodiscard]] static std::vector<nn::MemoryItem> memory(const OptimizerOptions& options,
                                                          const nn::ParameterLayout& layout,
                                                          const BucketPlan& plan,
                                                          std::int64_t data_rank, DType dtype);

  /// Updates the own slice of a bucket; a borrowed bucket is skipped. `step` starts at 1.
  /// Shapes: gradients are the layout's, in compute_dtype of the weights.
  void update(std::size_t bucket, const ConstTensorView& gradients, double learning_rate,
              double gradient_scale, std::int64_t step);

  [[nodiscard]] const std::vector<OwnedPiece>& pieces() const { return pieces_; }
  /// The master weights of a piece. After writing to them call write_weights().
  [[nodiscard]] TensorView master(const OwnedPiece& piece) const;
  /// State tensor `index` of a piece.
  [[nodiscard]] TensorView state(std::size_t index, const OwnedPiece& piece) const;
  /// All own state tensors and, where there are, master copies.
  [[nodiscard]] std::vector<TensorView> tensors() const;
  /// Rounds the master copies into the weights of the own slices; nothing without copies.
  void write_weights();

 private:
  struct Rule {
    nn::ParameterRule rule = nn::ParameterRule::kTrained;
    double keep = 0.0;
    /// Factor of the learning rate.
    double rate = 1.0;
    double decay = 0.0;

    friend bool operator==(const Rule&, const Rule&) = default;
  };

  /// Pieces of one bucket that have one rule and follow each other, with what pads them: zeros,
  /// which every rule keeps.
  struct Run {
    std::size_t bucket = 0;
    std::int64_t arena_offset = 0;
    std::int64_t owned_offset = 0;
    std::int64_t state_offset = 0;
    std::int64_t count = 0;
    Rule rule;
  };

  [[nodiscard]] TensorView master(std::int64_t arena_offset, std::int64_t owned_offset,
                                  std::int64_t count) const;
  /// Whether the weights have been rounded too.
  bool update_run(const Run& run, const ConstTensorView& gradient, double learning_rate,
                  double gradient_scale, std::int64_t step);

  ops::Context& context_;
  OptimizerOptions options_;
  TensorView weights_;
  std::vector<OwnedPiece> pieces_;
  std::vector<Run> runs_;
  device::Buffer state_memory_;
  device::Buffer master_memory_;
  std::vector<TensorView> states_;
  TensorView masters_;  ///< empty where the weights are the master weights
};

}  // namespace strata::optim
