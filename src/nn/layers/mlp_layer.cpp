#include <fmt/format.h>

#include "strata/nn/mlp_kind.hpp"
#include "strata/ops/activation.hpp"

#include "layers/sublayer.hpp"

namespace strata::nn {
namespace {

/// Two dense layers around an activation: down(f(up(x))), or down(f(gate(x)) up(x)).
/// Parameters: norm; up; with a gate gate; down. Source: Shazeer, "GLU variants improve
/// transformer", arXiv 2002.05202.
class Mlp final : public Sublayer {
 public:
  Mlp(const LayerSite& site, const SublayerOptions& options, std::int64_t hidden, MlpKind kind)
      : Sublayer(site, options, products_of(hidden, kind), "down", hidden, 1), kind_(kind) {}

  std::string text() const override {
    return fmt::format("mlp {} {}{}", inner_width(), name_of(kind_), adapter_text());
  }

 protected:
  ops::Activation product_activation() const override {
    return kind_ == MlpKind::kGelu ? activation() : ops::Activation::kNone;
  }
  Keep result_under_selective() const override { return Keep::kRecomputed; }

  void inner_forward(const Inner& inner) const override {
    if (const auto gate = gate_of(kind_)) {
      ops::gated_forward(inner.pass.context, *gate, inner.product(Product::kGate),
                         inner.product(Product::kUp), inner.result);
    } else {
      ops::activation_forward(inner.pass.context, activation(), inner.product(Product::kUp),
                              inner.result);
    }
  }

  void inner_backward(const Inner& inner, const TensorView& result_gradient,
                      const TensorSlots& product_gradients) const override {
    if (const auto gate = gate_of(kind_)) {
      ops::gated_backward(inner.pass.context, *gate, inner.product(Product::kGate),
                          inner.product(Product::kUp), result_gradient,
                          product_gradients.at(Product::kGate), product_gradients.at(Product::kUp));
    } else {
      ops::activation_backward(inner.pass.context, activation(), inner.product(Product::kUp),
                               inner.result, result_gradient, product_gradients.at(Product::kUp));
    }
  }

 private:
  /// kGate: of kinds with a gate.
  enum class Product { kUp, kGate };

  /// The activation between the two layers; none with a gate.
  ops::Activation activation() const {
    return enum_from_name<ops::Activation>(name_of(kind_)).value_or(ops::Activation::kNone);
  }
  static std::vector<InnerProduct> products_of(std::int64_t hidden, MlpKind kind) {
    const InnerProduct up{"up", hidden};
    if (!gate_of(kind)) {
      return slot_list<Product, InnerProduct>({{Product::kUp, up}});
    }
    return slot_list<Product, InnerProduct>(
        {{Product::kUp, up}, {Product::kGate, {"gate", hidden}}});
  }

  MlpKind kind_;
};

}  // namespace

std::unique_ptr<Layer> make_mlp(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  site.require_whole_rows(line);
  if (site.input.shape.rank() == 0) {
    line.refuse("its input has no dimension to act on");
  }
  const std::int64_t hidden = line.take_count("the number of hidden units");
  const std::string name = line.take_value();
  const auto kind = name.empty() ? MlpKind::kGelu : enum_from_name<MlpKind>(name);
  if (!kind) {
    line.refuse(fmt::format("between its layers it can have {}, not \"{}\"",
                            joined_names<MlpKind>(), name));
  }
  site.require_shards_divide(line, hidden, "hidden units");
  const SublayerOptions options = gate_of(*kind)
                                      ? take_sublayer_options(line, site, {"up", "gate", "down"})
                                      : take_sublayer_options(line, site, {"up", "down"});
  return std::make_unique<Mlp>(site, options, hidden, *kind);
}

}  // namespace strata::nn
