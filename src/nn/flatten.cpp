#include "layer_kinds.hpp"

namespace strata::nn {
namespace {

/// The sample as a vector; the memory stays the same.
class Flatten final : public Layer {
 public:
  explicit Flatten(const LayerSite& site)
      : Layer(site.name, site.input, {Shape{site.input.shape.count()}}) {}

  std::string text() const override { return "flatten"; }
  bool is_view() const override { return true; }
  LayerCost cost() const override { return {}; }
};

}  // namespace

std::unique_ptr<Layer> make_flatten(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  if (site.input.placement != Placement::kReplicated) {
    line.refuse("its input is split over the tensor ranks; put it where samples are whole");
  }
  return std::make_unique<Flatten>(site);
}

}  // namespace strata::nn
