#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strata/core/tensor.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::nn {

/// Whether a pass is part of training; dropout acts only then.
enum class Mode { kTraining, kEvaluation };

/// What a layer computes with in one microbatch. Rows are the microbatch's samples.
struct LayerPass {
  ops::Context& context;
  Mode mode = Mode::kTraining;
  /// Global index of the sample in row 0; further rows follow it.
  std::int64_t first_row = 0;
  /// Shapes: microbatch x input shape, microbatch x output shape.
  ConstTensorView input;
  TensorView output;
  /// What forward keeps for backward, as listed by saved().
  std::span<const TensorView> saved;
  /// The layer's parameters, in the order of parameters().
  std::span<const TensorView> weights;
};

/// A tensor that forward keeps for backward.
struct SavedSpec {
  Shape shape;
  DType dtype = DType::kFloat32;
};

/// The work of one pass over one sample, for balancing stages.
struct LayerCost {
  double forward_flops = 0.0;
  double backward_flops = 0.0;
  /// Elements read and written, forward and backward.
  double elements_moved = 0.0;
};

/// One layer of a model: shapes, parameters and the three passes. It holds no tensors and no state.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Without the microbatch dimension.
  [[nodiscard]] const Shape& input_shape() const { return input_shape_; }
  [[nodiscard]] const Shape& output_shape() const { return output_shape_; }
  /// For tables, as in "dense 128 relu".
  [[nodiscard]] virtual std::string text() const = 0;
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters() const { return {}; }
  [[nodiscard]] virtual std::vector<SavedSpec> saved(std::int64_t microbatch, DType dtype) const;
  /// Whether the output is the input's memory under another shape; such a layer has no passes.
  [[nodiscard]] virtual bool is_view() const { return false; }
  [[nodiscard]] virtual LayerCost cost() const;

  virtual void forward(const LayerPass& pass) const;
  /// Turns the output's gradient into the input's, unless input_gradient is empty. May change
  /// output_gradient in place to the form that backward_weight wants, which follows later.
  virtual void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                              const TensorView& input_gradient) const;
  /// Overwrites or adds to the gradients of the parameters.
  virtual void backward_weight(const LayerPass& pass, const TensorView& output_gradient,
                               std::span<const TensorView> weight_gradients,
                               ops::Accumulate accumulate) const;

 protected:
  Layer(std::string name, const Shape& input_shape, const Shape& output_shape)
      : name_(std::move(name)), input_shape_(input_shape), output_shape_(output_shape) {}

 private:
  std::string name_;
  Shape input_shape_;
  Shape output_shape_;
};

}  // namespace strata::nn
