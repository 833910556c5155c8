#include "strata/ops/image.hpp"

#include "layers/channel_blocks.hpp"
#include "layers/layer_kinds.hpp"

namespace strata::nn {
namespace {

/// Features of an image that belong to one channel.
std::int64_t pixels_of(const Port& input) {
  return is_image(input) ? input.shape[0] * input.shape[1] : 1;
}

/// Channels that are split stay together with their pixels.
Port flat_port(const Port& input) {
  const bool split = input.placement == Placement::kFeatures;
  return {
      {input.shape.count()}, input.placement, split ? input.unit * pixels_of(input) : input.unit};
}

/// The sample as a vector. Images, which lie channels last, become channels of pixels, the order
/// that a vector of an image has everywhere; of other samples the memory stays the same.
class Flatten final : public Layer {
 public:
  explicit Flatten(const LayerSite& site) : Layer(site.name, site.input, flat_port(site.input)) {}

  std::string text() const override { return "flatten"; }
  bool is_view() const override { return pixels_of(input()) == 1 || input_shape().back() == 1; }
  bool backward_reads_output() const override { return false; }
  LayerCost cost() const override { return is_view() ? LayerCost{} : Layer::cost(); }

  void forward(const LayerPass& pass) const override {
    const std::int64_t pixels = pixels_of(input());
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      ops::swap_inner(pass.context, images_of(pass), pixels, block.channels, block.of(pass.input),
                      block.of(pass.output));
    }
  }

  void backward_input(const LayerPass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const override {
    if (input_gradient.empty()) {
      return;
    }
    const std::int64_t pixels = pixels_of(input());
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      ops::swap_inner(pass.context, images_of(pass), block.channels, pixels,
                      block.of(output_gradient), block.of(input_gradient));
    }
  }

 private:
  [[nodiscard]] std::int64_t images_of(const LayerPass& pass) const {
    return pass.input.count() / (pixels_of(input()) * channel_blocks(pass, input()).front().held);
  }
};

}  // namespace

std::unique_ptr<Layer> make_flatten(LayerLine& line, const LayerSite& site) {
  site.require_numbers(line);
  if (site.input.placement != Placement::kReplicated && !is_image(site.input)) {
    line.refuse("its input is split over the tensor ranks; put it where samples are whole");
  }
  return std::make_unique<Flatten>(site);
}

}  // namespace strata::nn
