#pragma once

#include <cstdint>
#include <string>

#include "strata/core/switch.hpp"
#include "strata/ops/activation.hpp"

#include "layers/layer_kinds.hpp"
#include "layers/projection.hpp"

namespace strata::nn {

/// The options of a linear layer's line, besides its sizes.
struct LinearOptions {
  Switch bias = Switch::kOn;
  Initializer initializer = Initializer::kFanIn;
  ops::Activation activation = ops::Activation::kNone;
  ProjectionSplit parallel = ProjectionSplit::kNone;
};

/// The sizes of a linear layer.
struct LinearSizes {
  std::int64_t inputs = 1;   ///< features or channels of a row of the input
  std::int64_t outputs = 1;  ///< and of the output
  /// Rows of one image at the input and at the output; 1 for a dense layer.
  std::int64_t rows_in = 1;
  std::int64_t rows_out = 1;
  Shape weight;  ///< outputs x inputs (of one group), then the window
};

/// Takes the activation and the options. Throws: Error(kUsage) where they do not match the input,
/// or the shards do not divide what they split.
LinearOptions take_linear_options(LayerLine& line, const LayerSite& site, std::int64_t outputs);

/// y = activation(product(x, W) + b), the common part of dense layers and convolutions; the
/// activation is none or relu. Features are the last dimension.
/// Communication: with parallel=row one all-reduce of y over the tensor group, with parallel=column
/// one of x's gradient. Source of the splits: Shoeybi et al., "Megatron-LM", arXiv 1909.08053.
class LinearLayer : public Layer {
 public:
  std::vector<ParameterSpec> parameters() const override { return projection_.parameters(name()); }
  std::vector<TensorSpec> workspace(const PassShape& pass) const override;
  void forward(const LayerPass& pass) const override;
  void backward(const LayerPass& pass, Wants wants) const override;

 protected:
  LinearLayer(const LayerSite& site, const Shape& output_shape, LinearSizes sizes,
              const LinearOptions& options);

  /// As in " relu column".
  [[nodiscard]] std::string options_text() const;

  [[nodiscard]] const Projection& projection() const { return projection_; }

  /// The products of a shard: those of projection().
  /// Shapes: x rows x inputs, y rows x outputs, bias outputs or empty. y may have compute_dtype().
  virtual void product(const LayerPass& pass, std::int64_t shard, const ConstTensorView& x,
                       const TensorView& y, const TensorView& bias,
                       ops::Activation activation) const {
    projection_.forward(pass, shard, x, {}, y, {.bias = bias, .activation = activation});
  }
  virtual void input_product(const LayerPass& pass, std::int64_t shard, const ConstTensorView& dy,
                             const TensorView& dx) const {
    projection_.input_gradient(pass, shard, dy, {}, dx, {});
  }
  virtual void weight_product(const LayerPass& pass, std::int64_t shard, const ConstTensorView& x,
                              const ConstTensorView& dy) const {
    projection_.weight_gradient(pass, shard, x, dy, pass.accumulate);
  }

 private:
  void input_gradient(const LayerPass& pass) const;
  void weight_gradients(const LayerPass& pass) const;
  [[nodiscard]] bool is_row() const { return options_.parallel == ProjectionSplit::kInputs; }
  [[nodiscard]] bool is_column() const { return options_.parallel == ProjectionSplit::kOutputs; }
  [[nodiscard]] std::int64_t rows_in(const LayerPass& pass) const;
  [[nodiscard]] std::int64_t rows_out(const LayerPass& pass) const;
  /// The shards of the weight that this rank holds.
  [[nodiscard]] grid::Range own_shards(const LayerPass& pass) const;
  template <typename View>
  [[nodiscard]] View input_block(const LayerPass& pass, const View& tensor,
                                 std::int64_t shard) const;
  [[nodiscard]] TensorView output_block(const LayerPass& pass, const TensorView& tensor,
                                        std::int64_t shard) const;

  LinearSizes sizes_;
  LinearOptions options_;
  Projection projection_;
};

}  // namespace strata::nn
