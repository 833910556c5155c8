#include "layer_kinds.hpp"

namespace strata::nn {
namespace {

/// The sample as a vector; the memory stays the same.
class Flatten final : public Layer {
 public:
  explicit Flatten(const LayerSite& site)
      : Layer(site.name, site.input_shape, Shape{site.input_shape.count()}) {}

  std::string text() const override { return "flatten"; }
  bool is_view() const override { return true; }
  LayerCost cost() const override { return {}; }
};

}  // namespace

std::unique_ptr<Layer> make_flatten(LayerLine& /*line*/, const LayerSite& site) {
  return std::make_unique<Flatten>(site);
}

}  // namespace strata::nn
