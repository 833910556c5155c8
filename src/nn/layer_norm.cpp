#include "strata/ops/layer_norm.hpp"

#include "strata/core/text.hpp"

#include "layer_kinds.hpp"

namespace strata::nn {
namespace {

/// Normalises the last dimension to mean 0 and variance 1, then scales and shifts it.
/// Source: Ba, Kiros, Hinton, "Layer normalization", arXiv 1607.06450.
class LayerNorm final : public Layer {
 public:
  LayerNorm(const LayerSite& site, double epsilon)
      : Layer(site.name, site.input_shape, site.input_shape),
        width_(site.input_shape.back()),
        epsilon_(epsilon) {}

  std::string text() const override { return "layer_norm"; }

  std::vector<ParameterSpec> parameters() const override {
    return {{.name = name() + ".gain", .shape = {width_}, .initializer = Initializer::kOnes},
            {.name = name() + ".bias", .shape = {width_}, .initializer = Initializer::kZeros}};
  }

  std::vector<SavedSpec> saved(std::int64_t microbatch, DType dtype) const override {
    const std::int64_t rows = microbatch * input_shape().count() / width_;
    return {{.shape = {rows}, .dtype = dtype}, {.shape = {rows}, .dtype = dtype}};
  }

  void forward(const LayerPass& pass) const override {
    ops::layer_norm_forward(pass.context, pass.input, pass.weights[0], pass.weights[1], epsilon_,
                            pass.output, pass.saved[0], pass.saved[1]);
  }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    if (!input_gradient.empty()) {
      ops::layer_norm_backward_input(pass.context, pass.input, pass.weights[0], pass.saved[0],
                                     pass.saved[1], output_gradient, input_gradient);
    }
  }

  void backward_weight(const LayerPass& pass, const TensorView& output_gradient,
                       std::span<const TensorView> weight_gradients,
                       ops::Accumulate accumulate) const override {
    ops::layer_norm_backward_weight(pass.context, pass.input, pass.saved[0], pass.saved[1],
                                    output_gradient, weight_gradients[0], weight_gradients[1],
                                    accumulate);
  }

 private:
  std::int64_t width_;
  double epsilon_;
};

}  // namespace

std::unique_ptr<Layer> make_layer_norm(LayerLine& line, const LayerSite& site) {
  if (site.input_shape.rank() == 0) {
    line.refuse("its input has no dimension to normalise");
  }
  const std::string text = line.take_option("epsilon", "1e-5");
  double epsilon = 0.0;
  if (!parse_double(text, epsilon) || !(epsilon > 0.0)) {
    line.refuse(fmt::format("epsilon is \"{}\", it must be a number above 0", text));
  }
  return std::make_unique<LayerNorm>(site, epsilon);
}

}  // namespace strata::nn
