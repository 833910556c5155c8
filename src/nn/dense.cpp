#include <fmt/format.h>

#include "layer_kinds.hpp"

namespace strata::nn {
namespace {

enum class Bias { kNo, kYes };

}  // namespace
}  // namespace strata::nn

template <>
struct strata::EnumNames<strata::nn::Bias> {
  static constexpr std::array<std::pair<nn::Bias, std::string_view>, 2> kTable{
      {{nn::Bias::kNo, "no"}, {nn::Bias::kYes, "yes"}}};
};

namespace strata::nn {
namespace {

/// y = activation(x W^T + b) over the last dimension, the activation none or relu.
/// Shapes: x rows x inputs, W outputs x inputs, b outputs, y rows x outputs.
class Dense final : public Layer {
 public:
  Dense(const LayerSite& site, const Shape& output_shape, Bias bias, Initializer initializer,
        ops::Activation activation)
      : Layer(site.name, site.input_shape, output_shape),
        inputs_(site.input_shape.back()),
        outputs_(output_shape.back()),
        bias_(bias),
        initializer_(initializer),
        activation_(activation) {}

  std::string text() const override {
    return fmt::format("dense {}{}", outputs_,
                       activation_ == ops::Activation::kRelu ? " relu" : "");
  }

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs{{.name = name() + ".weight",
                                      .shape = {outputs_, inputs_},
                                      .initializer = initializer_,
                                      .fan_in = inputs_,
                                      .fan_out = outputs_}};
    if (bias_ == Bias::kYes) {
      const Initializer initializer =
          initializer_ == Initializer::kFanIn ? Initializer::kFanIn : Initializer::kZeros;
      specs.push_back({.name = name() + ".bias",
                       .shape = {outputs_},
                       .initializer = initializer,
                       .fan_in = inputs_,
                       .fan_out = outputs_});
    }
    return specs;
  }

  LayerCost cost() const override {
    const double flops =
        2.0 * static_cast<double>(input_shape().count()) * static_cast<double>(outputs_);
    LayerCost cost = Layer::cost();
    cost.forward_flops = flops;
    cost.backward_flops = 2.0 * flops;
    return cost;
  }

  void forward(const LayerPass& pass) const override {
    ops::matmul(pass.context, rows_of(pass.input, inputs_), pass.weights[0],
                rows_of(pass.output, outputs_),
                {.transpose_b = ops::Transpose::kYes,
                 .bias = bias_ == Bias::kYes ? pass.weights[1] : TensorView(),
                 .activation = activation_});
  }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    if (activation_ == ops::Activation::kRelu) {
      ops::activation_backward(pass.context, activation_, {}, pass.output, output_gradient,
                               output_gradient);
    }
    if (!input_gradient.empty()) {
      ops::matmul(pass.context, rows_of(output_gradient, outputs_), pass.weights[0],
                  rows_of(input_gradient, inputs_));
    }
  }

  void backward_weight(const LayerPass& pass, const TensorView& output_gradient,
                       std::span<const TensorView> weight_gradients,
                       ops::Accumulate accumulate) const override {
    ops::matmul(pass.context, rows_of(output_gradient, outputs_), rows_of(pass.input, inputs_),
                weight_gradients[0],
                {.transpose_a = ops::Transpose::kYes, .accumulate = accumulate});
    if (bias_ == Bias::kYes) {
      ops::column_sum(pass.context, rows_of(output_gradient, outputs_), weight_gradients[1],
                      accumulate);
    }
  }

 private:
  template <typename View>
  static View rows_of(const View& tensor, std::int64_t columns) {
    return tensor.reshaped(Shape{tensor.count() / columns, columns});
  }

  std::int64_t inputs_;
  std::int64_t outputs_;
  Bias bias_;
  Initializer initializer_;
  ops::Activation activation_;
};

}  // namespace

std::unique_ptr<Layer> make_dense(LayerLine& line, const LayerSite& site) {
  const std::int64_t units = line.take_count("the number of outputs");
  const std::string activation = line.take_value();
  if (!activation.empty() && activation != "relu") {
    line.refuse(fmt::format(
        "only relu can follow on the line of a dense layer; give \"{}\" a line of its own",
        activation));
  }
  if (site.input_shape.rank() == 0) {
    line.refuse("its input has no dimension to act on");
  }
  std::vector<std::int64_t> extents(site.input_shape.extents().begin(),
                                    site.input_shape.extents().end());
  extents.back() = units;
  return std::make_unique<Dense>(
      site, Shape(extents), line.take_enum("bias", Bias::kYes),
      line.take_enum("init", Initializer::kFanIn),
      activation.empty() ? ops::Activation::kNone : ops::Activation::kRelu);
}

}  // namespace strata::nn
