#include "strata/ops/activation.hpp"

#include "layers/layer_kinds.hpp"

namespace strata::nn {
namespace {

/// y = f(x), elementwise. y has the placement of x.
class ActivationLayer final : public Layer {
 public:
  ActivationLayer(const LayerSite& site, ops::Activation activation)
      : Layer(site.name, site.input, site.input), activation_(activation) {}

  std::string text() const override { return std::string(name_of(activation_)); }

  void forward(const LayerPass& pass) const override {
    ops::activation_forward(pass.context, activation_, pass.input, pass.output);
  }

  void backward(const LayerPass& pass, Wants /*wants*/) const override {
    if (!pass.input_gradient.empty()) {
      ops::activation_backward(pass.context, activation_, pass.input, pass.output,
                               pass.output_gradient, pass.input_gradient);
    }
  }

 private:
  ops::Activation activation_;
};

/// y = softmax(x) over the last dimension.
class Softmax final : public Layer {
 public:
  explicit Softmax(const LayerSite& site) : Layer(site.name, site.input, site.input) {}

  std::string text() const override { return "softmax"; }

  void forward(const LayerPass& pass) const override {
    ops::softmax_forward(pass.context, pass.input, pass.output);
  }

  void backward(const LayerPass& pass, Wants /*wants*/) const override {
    if (!pass.input_gradient.empty()) {
      ops::softmax_backward(pass.context, pass.output, pass.output_gradient, pass.input_gradient);
    }
  }
};

}  // namespace

std::unique_ptr<Layer> make_activation(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  return std::make_unique<ActivationLayer>(site, *enum_from_name<ops::Activation>(line.kind()));
}

std::unique_ptr<Layer> make_softmax(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  site.require_whole_rows(line);
  return std::make_unique<Softmax>(site);
}

}  // namespace strata::nn
