#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "strata/nn/stage.hpp"

namespace strata::nn {

/// Memory in use from step `begin` to step `end`, both included.
struct Interval {
  std::int64_t bytes = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Offsets such that intervals which overlap in time do not overlap in memory: the largest first,
/// each at its lowest possible offset. Pre: bytes are multiples of the alignment.
[[nodiscard]] std::vector<std::int64_t> assign_offsets(std::span<const Interval> intervals);

/// The memory of a stage's activation gradients in one microbatch, and the order of their sums.
///
/// The gradient of a tensor that several layers read is the sum of their contributions, from the
/// last reader to the first, after what later stages send. The bits are therefore the same for
/// every split of the model into stages.
struct GradientPlan {
  /// No piece of memory.
  static constexpr std::int64_t kNone = -1;

  enum class Home {
    kSlot,   ///< memory of its own, from the gradient's arrival to the weight gradients
    kShared  ///< memory that gradients of the same pass reuse
  };
  struct Piece {
    TensorSpec tensor;
    Home home = Home::kSlot;
    /// For kShared: the first and last step of the backward pass that use it, one step a layer.
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  /// Indices of pieces.
  struct LayerGradients {
    std::int64_t output = kNone;
    std::int64_t input = kNone;
    /// Added to `input` once the layer has written it.
    std::int64_t input_sum = kNone;
    /// For the second input: a copy of the output's gradient; kNone where that itself serves.
    std::int64_t added = kNone;
    std::int64_t added_sum = kNone;
    std::vector<std::int64_t> inner;
  };

  std::vector<Piece> pieces;
  std::vector<LayerGradients> layers;
  /// For every tensor except the model's input that crosses the stage's end, and its begin. On the
  /// last stage the loss writes received[0].
  std::vector<std::int64_t> received;
  std::vector<std::int64_t> sent;
};

[[nodiscard]] GradientPlan plan_gradients(const Model& model, const StageSpec& spec);

}  // namespace strata::nn
