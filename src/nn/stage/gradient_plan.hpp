#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "strata/nn/stage.hpp"

namespace strata::nn {

/// Memory that is used from one moment to another, both included.
struct Interval {
  std::int64_t bytes = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// An offset for each interval, such that no two that meet in time overlap: the longest first, each
/// as low as it can lie. Pre: bytes are multiples of the alignment that offsets shall have.
[[nodiscard]] std::vector<std::int64_t> place_intervals(std::span<const Interval> intervals);

/// Where the gradients of a stage's tensors lie in one microbatch, and which are added to which.
///
/// The gradient of a tensor that several layers read is the sum of what each of them gives, added
/// from the last reader to the first; what later stages send comes before all. So it has the same
/// bits wherever the model is cut.
struct GradientPlan {
  /// No piece of memory: nothing is wanted there.
  static constexpr std::int64_t kNone = -1;

  enum class Home {
    kSlot,   ///< memory that stays from the gradient's arrival to the weight gradients
    kShared  ///< memory that other gradients of the same pass take in their turn
  };
  struct Piece {
    TensorSpec tensor;
    Home home = Home::kSlot;
    /// For kShared: from when to when in the backward pass, which counts its layers from 0.
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  /// Pieces by their index.
  struct LayerGradients {
    std::int64_t output = kNone;
    std::int64_t input = kNone;
    /// Added to `input` once the layer has written it.
    std::int64_t input_sum = kNone;
    /// Of the added input: a piece that output's gradient is copied to, or output's itself.
    std::int64_t added = kNone;
    std::int64_t added_sum = kNone;
    std::vector<std::int64_t> inner;
  };

  std::vector<Piece> pieces;
  std::vector<LayerGradients> layers;
  /// For every tensor but the model's input that crosses the stage's end and its begin. Where the
  /// stage has the model's end, the loss writes received[0], whatever the tensor.
  std::vector<std::int64_t> received;
  std::vector<std::int64_t> sent;
};

[[nodiscard]] GradientPlan plan_gradients(const Model& model, const StageSpec& spec);

}  // namespace strata::nn
