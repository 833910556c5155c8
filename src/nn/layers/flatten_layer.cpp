#include "strata/ops/image.hpp"

#include "layers/channel_blocks.hpp"
#include "layers/layer_kinds.hpp"

namespace strata::nn {
namespace {

/// Features of an image that belong to one channel.
std::int64_t pixels_of(const Port& input) {
  return is_image(input) ? input.shape[0] * input.shape[1] : 1;
}

/// Split channels keep all their pixels on one shard.
Port flat_port(const Port& input) {
  const bool split = input.placement == Placement::kFeatures;
  return {
      {input.shape.count()}, input.placement, split ? input.unit * pixels_of(input) : input.unit};
}

/// The sample as a vector. Images are stored channels last and become vectors channels first, as in
/// PyTorch; other samples keep their memory.
class Flatten final : public ChannelLayer {
 public:
  explicit Flatten(const LayerSite& site)
      : ChannelLayer(site.name, site.input, flat_port(site.input),
                     {.is_view = pixels_of(site.input) == 1 || site.input.shape.back() == 1,
                      .backward_reads_output = false}) {}

  std::string text() const override { return "flatten"; }

 private:
  void forward_block(const LayerPass& pass, const ChannelBlock& block, const ConstTensorView& x,
                     const TensorView& y) const override {
    const std::int64_t pixels = pixels_of(input());
    ops::swap_inner(pass.context, images_of(block, x), pixels, block.channels, x, y);
  }

  void backward_block(const LayerPass& pass, const ChannelBlock& block, const TensorView& dy,
                      const TensorView& dx) const override {
    const std::int64_t pixels = pixels_of(input());
    ops::swap_inner(pass.context, images_of(block, dx), block.channels, pixels, dy, dx);
  }

  [[nodiscard]] std::int64_t images_of(const ChannelBlock& block, const ConstTensorView& x) const {
    return x.count() / (pixels_of(input()) * block.channels);
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
