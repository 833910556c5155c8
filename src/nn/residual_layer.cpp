#include <algorithm>
#include <initializer_list>
#include <string_view>

#include <fmt/format.h>

#include "strata/ops/elementwise.hpp"

#include "chain.hpp"
#include "layer_reader.hpp"

namespace strata::nn {
namespace {

/// y = activation(body(x) + shortcut(x)), where no shortcut is x itself.
/// Source: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", arXiv 1512.03385.
class Residual final : public Layer {
 public:
  Residual(const LayerSite& site, const Port& output, Chain body, Chain shortcut,
           ops::Activation activation)
      : Layer(site.name, site.input, output),
        body_(std::move(body)),
        shortcut_(std::move(shortcut)),
        activation_(activation) {}

  std::string text() const override {
    return fmt::format("residual of {}{}{}", body_.size(),
                       shortcut_.empty() ? "" : fmt::format(" and {}", shortcut_.size()),
                       has_relu() ? " relu" : "");
  }

  std::vector<ParameterSpec> parameters() const override {
    return joined(body_.parameters(), shortcut_.parameters());
  }
  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    return joined(body_.saved(pass), shortcut_.saved(pass));
  }
  /// First the body's output gradient, and the shortcut's input gradient where there is one.
  std::vector<TensorSpec> gradients(const PassShape& pass) const override {
    std::vector<TensorSpec> specs{{local_shape(output(), pass), pass.dtype}};
    if (!shortcut_.empty()) {
      specs.push_back({local_shape(input(), pass), pass.dtype});
    }
    specs = joined(std::move(specs), body_.gradients(pass));
    return joined(std::move(specs), shortcut_.gradients(pass));
  }
  std::vector<TensorSpec> workspace(const PassShape& pass) const override {
    return joined(body_.workspace(pass), shortcut_.workspace(pass));
  }

  bool backward_reads_output() const override { return has_relu(); }

  LayerCost cost() const override {
    const LayerCost body = body_.cost();
    const LayerCost shortcut = shortcut_.cost();
    return {.forward_flops = body.forward_flops + shortcut.forward_flops,
            .backward_flops = body.backward_flops + shortcut.backward_flops,
            .elements_moved =
                body.elements_moved + shortcut.elements_moved + Layer::cost().elements_moved};
  }

  LayerTraffic traffic(const PassShape& pass) const override {
    LayerTraffic traffic = body_.traffic(pass);
    traffic += shortcut_.traffic(pass);
    return traffic;
  }

  void forward(const LayerPass& pass) const override {
    const TensorView y = body_.forward(body_pass(pass));
    const ConstTensorView x =
        shortcut_.empty() ? pass.input : ConstTensorView(shortcut_.forward(shortcut_pass(pass)));
    ops::add_bias_residual(pass.context, y, {}, x, pass.output);
    if (has_relu()) {
      ops::activation_forward(pass.context, activation_, pass.output, pass.output);
    }
  }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    if (has_relu()) {
      ops::activation_backward(pass.context, activation_, {}, pass.output, output_gradient,
                               output_gradient);
    }
    // Both ways may change their gradient.
    ops::copy(pass.context, output_gradient, pass.gradients[0]);
    body_.backward_input(body_pass(pass), pass.gradients[0], input_gradient);
    if (shortcut_.empty()) {
      if (!input_gradient.empty()) {
        ops::add(pass.context, output_gradient, input_gradient);
      }
      return;
    }
    const TensorView other = input_gradient.empty() ? input_gradient : pass.gradients[1];
    shortcut_.backward_input(shortcut_pass(pass), output_gradient, other);
    if (!input_gradient.empty()) {
      ops::add(pass.context, other, input_gradient);
    }
  }

  void backward_weight(const LayerPass& pass, const TensorView& output_gradient,
                       std::span<const ParameterViews> weight_gradients,
                       ops::Accumulate accumulate) const override {
    const std::size_t count = body_.parameter_count();
    body_.backward_weight(body_pass(pass), pass.gradients[0], weight_gradients.first(count),
                          accumulate);
    shortcut_.backward_weight(shortcut_pass(pass), output_gradient, weight_gradients.subspan(count),
                              accumulate);
  }

 private:
  [[nodiscard]] bool has_relu() const { return activation_ == ops::Activation::kRelu; }

  template <typename T>
  static std::vector<T> joined(std::vector<T> first, const std::vector<T>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }

  /// Gradients of the block itself, before those of its chains.
  [[nodiscard]] std::size_t own_gradients() const { return shortcut_.empty() ? 1 : 2; }

  [[nodiscard]] Chain::Pass body_pass(const LayerPass& pass) const {
    const Chain::Sizes sizes = body_.sizes(pass);
    return {.outer = pass,
            .saved = pass.saved.first(sizes.saved),
            .gradients = pass.gradients.empty()
                             ? pass.gradients
                             : pass.gradients.subspan(own_gradients(), sizes.gradients),
            .workspace = pass.workspace.first(sizes.workspace),
            .weights = pass.weights.first(body_.parameter_count())};
  }

  [[nodiscard]] Chain::Pass shortcut_pass(const LayerPass& pass) const {
    const Chain::Sizes sizes = body_.sizes(pass);
    return {.outer = pass,
            .saved = pass.saved.subspan(sizes.saved),
            .gradients = pass.gradients.empty()
                             ? pass.gradients
                             : pass.gradients.subspan(own_gradients() + sizes.gradients),
            .workspace = pass.workspace.subspan(sizes.workspace),
            .weights = pass.weights.subspan(body_.parameter_count())};
  }

  Chain body_;
  Chain shortcut_;
  ops::Activation activation_;
};

/// The layers of a block up to a line of one of the kinds `until`, which is left.
std::vector<std::unique_ptr<Layer>> layers_until(const LayerLine& opening, LayerSite& site,
                                                 LayerReader& reader, const std::string& prefix,
                                                 std::initializer_list<std::string_view> until) {
  std::vector<std::unique_ptr<Layer>> layers;
  for (; !reader.done(); site.input = layers.back()->output()) {
    const LayerLine next(reader.line());
    if (std::find(until.begin(), until.end(), next.kind()) != until.end()) {
      return layers;
    }
    layers.push_back(reader.next(site, prefix));
    if (layers.back()->is_view()) {
      next.refuse("it has no place in a residual block; put it before or behind the block");
    }
  }
  opening.refuse(fmt::format("the block has no \"layer = {}\" at its end", *until.begin()));
}

}  // namespace

std::unique_ptr<Layer> make_residual(LayerLine& line, const LayerSite& site, LayerReader& reader) {
  site.require_numbers(line);
  if (site.vocabulary > 0) {
    line.refuse(
        "residual blocks are for samples that are no text; attention and mlp add their input "
        "themselves (residual=yes)");
  }
  LayerSite inner = site;
  const std::string prefix = site.name + ".";
  Chain body(layers_until(line, inner, reader, prefix, {"end", "shortcut"}));
  if (body.empty()) {
    line.refuse("the block has no layer between \"residual\" and its end");
  }
  const Port output = inner.input;
  inner.input = site.input;
  std::vector<std::unique_ptr<Layer>> shortcut;
  if (LayerLine opening(reader.line()); opening.kind() == "shortcut") {
    opening.finish();
    reader.skip();
    shortcut = layers_until(opening, inner, reader, prefix + "shortcut.", {"end"});
  }
  LayerLine end(reader.line());
  reader.skip();
  const ops::Activation activation = end.take_relu();
  end.finish();
  if (inner.input != output) {
    end.refuse(fmt::format(
        "the block's layers give {}, but its {} gives {}, and the two are added; put \"layer = "
        "shortcut\" and layers that give the same shape, split alike, before \"end\"",
        shape_text(output), shortcut.empty() ? "input" : "shortcut", shape_text(inner.input)));
  }
  return std::make_unique<Residual>(site, output, std::move(body), Chain(std::move(shortcut)),
                                    activation);
}

}  // namespace strata::nn
