#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/device/buffer.hpp"
#include "strata/grid/grid.hpp"
#include "strata/nn/gradient_sink.hpp"
#include "strata/nn/model.hpp"
#include "strata/ops/loss.hpp"

namespace strata::nn {

/// How many microbatches a stage keeps memory for. Microbatch m uses slot m % slots of each kind.
struct StageSlots {
  std::int64_t activations = 1;  ///< between forward and backward-weight
  std::int64_t inputs =
      0;  ///< received activations; none on the first stage, whose input is the loader's
  std::int64_t gradients = 1;  ///< between the arrival of the output's gradient and backward-weight
};

/// One line of the memory plan.
struct MemoryItem {
  std::string name;
  std::int64_t bytes = 0;
};

/// The tensors of one stage in its arenas, and its passes over one microbatch.
class Stage {
 public:
  /// `weights` holds layout_of(model.parameters(), layers) elements.
  Stage(ops::Context& context, const Model& model, const grid::Range& layers,
        std::int64_t microbatch, const StageSlots& slots, const TensorView& weights);

  /// The bytes that a Stage allocates, without allocating them.
  [[nodiscard]] static std::vector<MemoryItem> memory(const Model& model, const grid::Range& layers,
                                                      std::int64_t microbatch,
                                                      const StageSlots& slots, DType dtype);

  [[nodiscard]] const grid::Range& layers() const { return layers_; }
  [[nodiscard]] bool is_first() const { return layers_.begin == 0; }
  [[nodiscard]] bool is_last() const { return layers_.end == model_.layer_count(); }
  [[nodiscard]] const StageSlots& slots() const { return slots_; }
  [[nodiscard]] std::int64_t microbatch() const { return microbatch_; }

  /// Where the received input of microbatch m goes.
  [[nodiscard]] TensorView input_of(std::int64_t m) const;
  /// `input` is the one that forward had, for stages whose output is a view of it.
  [[nodiscard]] ConstTensorView output_of(std::int64_t m, const ConstTensorView& input) const;
  /// Where the gradient of the output of microbatch m goes.
  [[nodiscard]] TensorView output_gradient_of(std::int64_t m) const;
  /// The gradient of the input, after backward_input.
  [[nodiscard]] ConstTensorView input_gradient_of(std::int64_t m) const;

  /// `input` is the loader's on the first stage, else input_of(m).
  void forward(std::int64_t m, const ConstTensorView& input, std::int64_t first_row, Mode mode);
  /// The loss of the output, and for training its gradient times gradient_scale. Pre: is_last().
  [[nodiscard]] ops::LossSums loss(std::int64_t m, const ConstTensorView& input,
                                   const ConstTensorView& targets, std::int64_t valid_rows,
                                   double gradient_scale, Mode mode);
  void backward_input(std::int64_t m, const ConstTensorView& input, std::int64_t first_row);
  /// Hands the gradients to the sink, from the last layer to the first.
  void backward_weight(std::int64_t m, const ConstTensorView& input, std::int64_t first_row,
                       GradientSink& sink);

 private:
  struct Slot {
    std::vector<TensorView> outputs;
    std::vector<std::vector<TensorView>> saved;
  };

  [[nodiscard]] LayerPass pass_of(std::int64_t layer, std::int64_t m, const ConstTensorView& input,
                                  std::int64_t first_row, Mode mode);
  [[nodiscard]] ConstTensorView layer_input(std::int64_t layer, std::int64_t m,
                                            const ConstTensorView& input) const;
  [[nodiscard]] const Slot& slot_of(std::int64_t m) const;
  /// Gradient of the output of layer `first - 1 + i` at index i; index 0 is the stage's input.
  [[nodiscard]] const std::vector<TensorView>& gradients_of(std::int64_t m) const;

  ops::Context& context_;
  const Model& model_;
  grid::Range layers_;
  std::int64_t microbatch_;
  StageSlots slots_;
  DType dtype_;
  ParameterLayout layout_;
  device::Buffer activation_memory_;
  device::Buffer input_memory_;
  device::Buffer gradient_memory_;
  std::vector<Slot> activation_slots_;
  std::vector<TensorView> input_slots_;
  std::vector<std::vector<TensorView>> gradient_slots_;
  std::vector<std::vector<TensorView>> weights_;
};

}  // namespace strata::nn
