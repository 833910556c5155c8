#include <fmt/format.h>

#include "strata/ops/group_norm.hpp"

#include "layers/channel_blocks.hpp"
#include "layers/layer_kinds.hpp"
#include "layers/norm_part.hpp"

namespace strata::nn {
namespace {

/// Normalises groups of an image's channels over all its pixels, then scales and shifts each
/// channel. Where channels are split, every shard holds whole groups.
/// Source: Wu, He, "Group normalization", arXiv 1803.08494.
class GroupNorm final : public ChannelLayer {
 public:
  GroupNorm(const LayerSite& site, std::int64_t groups, double epsilon)
      : ChannelLayer(site.name, site.input, site.input), groups_(groups), epsilon_(epsilon) {}

  std::string text() const override { return fmt::format("group_norm {}", groups_); }

  std::vector<ParameterSpec> parameters() const override {
    const bool split = input().placement == Placement::kFeatures;
    ParameterSpec weight{.name = parameter_name(name(), "weight"),
                         .shape = {input_shape().back()},
                         .initializer = Initializer::kOnes,
                         .split = split ? 0 : kNotSplit,
                         .unit = split ? input().unit : 1};
    ParameterSpec bias = weight;
    bias.name = parameter_name(name(), "bias");
    bias.initializer = Initializer::kZeros;
    return {weight, bias};
  }

  std::vector<SavedSpec> saved(const PassShape& pass) const override {
    const std::int64_t channels = channel_blocks(input(), pass.shards).front().held;
    const TensorSpec statistic{{pass.microbatch, groups_of(channels)}, compute_dtype(pass.dtype)};
    return slot_list<Saved, SavedSpec>({{Saved::kMean, {statistic}}, {Saved::kRstd, {statistic}}});
  }

 private:
  /// The mean and the reciprocal standard deviation, images x groups for each channel block.
  enum class Saved { kMean, kRstd };

  void forward_block(const LayerPass& pass, const ChannelBlock& block, const ConstTensorView& x,
                     const TensorView& y) const override {
    ops::group_norm_forward(
        pass.context, shape_of(x, block), x, pass.weights[0][at(block)], pass.weights[1][at(block)],
        epsilon_, y, statistic(pass, Saved::kMean, block), statistic(pass, Saved::kRstd, block));
  }

  void backward_block(const LayerPass& pass, const ChannelBlock& block, const TensorView& dy,
                      const TensorView& dx) const override {
    const ConstTensorView x = block.of(pass.input);
    ops::group_norm_backward_input(pass.context, shape_of(x, block), x, pass.weights[0][at(block)],
                                   statistic(pass, Saved::kMean, block),
                                   statistic(pass, Saved::kRstd, block), dy, dx);
  }

  void backward_weights(const LayerPass& pass, const ChannelBlock& block,
                        const TensorView& dy) const override {
    const ConstTensorView x = block.of(pass.input);
    ops::group_norm_backward_weight(
        pass.context, shape_of(x, block), x, statistic(pass, Saved::kMean, block),
        statistic(pass, Saved::kRstd, block), dy, pass.weight_gradients[0][at(block)],
        pass.weight_gradients[1][at(block)], pass.accumulate);
  }

  [[nodiscard]] static std::size_t at(const ChannelBlock& block) {
    return static_cast<std::size_t>(block.local);
  }

  [[nodiscard]] std::int64_t groups_of(std::int64_t channels) const {
    return groups_ * channels / input_shape().back();
  }

  [[nodiscard]] ops::GroupNormShape shape_of(const ConstTensorView& x,
                                             const ChannelBlock& block) const {
    const std::int64_t pixels = rows_at(input(), 1);
    return {.images = x.shape()[0] / pixels,
            .pixels = pixels,
            .channels = block.channels,
            .groups = groups_of(block.channels)};
  }

  [[nodiscard]] TensorView statistic(const LayerPass& pass, Saved which,
                                     const ChannelBlock& block) const {
    const std::int64_t images = pass.input.count() / (rows_at(input(), 1) * block.held);
    return pass.saved.at(which).flat_slice(images * groups_of(block.first),
                                           images * groups_of(block.channels));
  }

  std::int64_t groups_;
  double epsilon_;
};

}  // namespace

std::unique_ptr<Layer> make_group_norm(LayerLine& line, const LayerSite& site) {
  site.require_image(line);
  const std::int64_t groups = line.take_count("the number of groups");
  const std::int64_t channels = site.input.shape.back();
  const std::int64_t shards = site.input.placement == Placement::kFeatures ? site.shards : 1;
  if (channels % groups != 0) {
    line.refuse(
        fmt::format("its input has {} channels, which {} groups do not divide", channels, groups));
  }
  if (groups % shards != 0) {
    site.refuse_split(line, groups, "groups", ", and its channels are split over shards");
  }
  return std::make_unique<GroupNorm>(site, groups, take_epsilon(line));
}

}  // namespace strata::nn
