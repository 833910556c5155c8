#pragma once

#include <cstdint>

#include "strata/core/tensor.hpp"
#include "strata/grid/grid.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::nn {

/// Collects the weight gradients of a stage, microbatch by microbatch in ascending
/// order in each chunk.
class GradientSink {
 public:
  GradientSink() = default;
  virtual ~GradientSink() = default;
  GradientSink(const GradientSink&) = delete;
  GradientSink& operator=(const GradientSink&) = delete;

  /// Where a stage writes the gradients of one microbatch, in its parameter layout, and whether it
  /// adds them to what is there.
  struct Target {
    TensorView gradients;
    ops::Accumulate accumulate = ops::Accumulate::kOverwrite;
  };
  /// Begins microbatch m of a chunk; layer_done() follows for each of its layers, from the last to
  /// the first.
  [[nodiscard]] virtual Target begin_microbatch(std::int64_t m, const grid::Range& layers) = 0;
  /// Whether layer_done() with the same arguments would launch device work or begin a message. The
  /// stage asks before it computes the layer's gradients.
  [[nodiscard]] virtual bool acts_on(std::int64_t m, std::int64_t layer) const = 0;
  /// Reports that microbatch m's gradients of `layer` (its index in the whole model) and of the
  /// chunk's later layers are complete.
  virtual void layer_done(std::int64_t m, std::int64_t layer) = 0;
  /// Finishes the step's reduction.
  virtual void finish() = 0;
};

}  // namespace strata::nn
