#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::nn {

/// Takes the weight gradients of a stage, microbatch by microbatch in ascending order.
class GradientSink {
 public:
  GradientSink() = default;
  virtual ~GradientSink() = default;
  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;

  /// Where microbatch m's gradients go, in the stage's parameter layout, and whether they are
  /// added.
  struct Target {
    TensorView gradients;
    ops::Accumulate accumulate = ops::Accumulate::kOverwrite;
  };
  [[nodiscard]] virtual Target target(std::int64_t m) = 0;
  /// Whether layer_done() with the same would put work on the device, or begin a message; asked
  /// before the layer's gradients are made.
  [[nodiscard]] virtual bool acts_on(std::int64_t m, std::int64_t layer) const = 0;
  /// Says that the gradients of `layer` (of the whole model's numbering) for microbatch m are
  /// complete, and so are those of all later layers.
  virtual void layer_done(std::int64_t m, std::int64_t layer) = 0;
  /// Ends the step's reduction.
  virtual void finish() = 0;
};

}  // namespace strata::nn
