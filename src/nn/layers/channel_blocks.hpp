#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "strata/nn/layer.hpp"

namespace strata::nn {

/// A contiguous block of rows x channels: all channels of a whole tensor, or those of one own
/// shard.
struct ChannelBlock {
  std::int64_t local = 0;  ///< its index among the own blocks
  std::int64_t channels = 0;
  std::int64_t first = 0;  ///< its first channel among the rank's channels
  std::int64_t held = 0;   ///< channels of the rank

  /// This block of a tensor with any number of rows.
  /// Shapes: rows x channels.
  template <typename View>
  [[nodiscard]] View of(const View& tensor) const {
    const std::int64_t rows = tensor.count() / held;
    return tensor.flat_slice(rows * first, rows * channels).reshaped(Shape{rows, channels});
  }
};

/// The blocks of a rank in a tensor at `port`.
[[nodiscard]] inline std::vector<ChannelBlock> channel_blocks(const Port& port,
                                                              const Shards& shards) {
  const std::int64_t width = port.shape.back();
  if (port.placement != Placement::kFeatures) {
    return {{.channels = width, .held = width}};
  }
  std::vector<ChannelBlock> blocks;
  std::int64_t held = 0;
  for (std::int64_t s = shards.own.begin; s < shards.own.end; ++s) {
    const std::int64_t channels = shard_part(width, port.unit, shards.count, s).count();
    blocks.push_back({.local = s - shards.own.begin, .channels = channels, .first = held});
    held += channels;
  }
  for (ChannelBlock& block : blocks) {
    block.held = held;
  }
  return blocks;
}

[[nodiscard]] inline std::vector<ChannelBlock> channel_blocks(const LayerPass& pass,
                                                              const Port& port) {
  return channel_blocks(port, {.count = pass.shards.shards(), .own = pass.shards.own()});
}

/// A layer that computes each channel block by itself and whose backward does not read the output.
/// Shapes: x, y and their gradients are rows x channels of a block.
class ChannelLayer : public Layer {
 public:
  void forward(const LayerPass& pass) const final {
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      forward_block(pass, block, block.of(pass.input), block.of(pass.output));
    }
  }

  void backward(const LayerPass& pass, Wants wants) const final {
    for (const ChannelBlock& block : channel_blocks(pass, input())) {
      if (wants_input(wants) && !pass.input_gradient.empty()) {
        backward_block(pass, block, block.of(pass.output_gradient), block.of(pass.input_gradient));
      }
      if (wants_weights(wants)) {
        backward_weights(pass, block, block.of(pass.output_gradient));
      }
    }
  }

 protected:
  ChannelLayer(std::string name, const Port& input, const Port& output,
               LayerTraits traits = {.backward_reads_output = false})
      : Layer(std::move(name), input, output, traits) {}

 private:
  virtual void forward_block(const LayerPass& pass, const ChannelBlock& block,
                             const ConstTensorView& x, const TensorView& y) const = 0;
  virtual void backward_block(const LayerPass& pass, const ChannelBlock& block,
                              const TensorView& dy, const TensorView& dx) const = 0;
  /// Of a layer with parameters.
  virtual void backward_weights(const LayerPass& /*pass*/, const ChannelBlock& /*block*/,
                                const TensorView& /*dy*/) const {}
};

}  // namespace strata::nn
