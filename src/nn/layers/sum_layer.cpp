#include "strata/ops/activation.hpp"
#include "strata/ops/elementwise.hpp"

#include "layers/layer_kinds.hpp"

namespace strata::nn {
namespace {

/// y = activation(x + added), the end of a residual block.
class Sum final : public Layer {
 public:
  Sum(const LayerSite& site, ops::Activation activation)
      : Layer(site.name, site.input, site.input,
              {.backward_reads_output = activation == ops::Activation::kRelu}),
        activation_(activation) {}

  std::string text() const override { return has_relu() ? "residual end relu" : "residual end"; }

  void forward(const LayerPass& pass) const override {
    ops::add_bias_residual(pass.context, pass.input, {}, pass.added, pass.output);
    if (has_relu()) {
      ops::activation_forward(pass.context, activation_, pass.output, pass.output);
    }
  }

  void backward(const LayerPass& pass, Wants /*wants*/) const override {
    if (has_relu()) {
      ops::activation_backward(pass.context, activation_, {}, pass.output, pass.output_gradient,
                               pass.output_gradient);
    }
    // Both branches may change their gradient in place, so each needs its own.
    ops::copy(pass.context, pass.output_gradient, pass.input_gradient);
  }

 private:
  [[nodiscard]] bool has_relu() const { return activation_ == ops::Activation::kRelu; }

  ops::Activation activation_;
};

}  // namespace

std::unique_ptr<Layer> make_sum(const LayerSite& site, ops::Activation activation) {
  return std::make_unique<Sum>(site, activation);
}

}  // namespace strata::nn
