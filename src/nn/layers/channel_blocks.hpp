#pragma once

#include <cstdint>
#include <vector>

#include "strata/nn/layer.hpp"

namespace strata::nn {

/// A contiguous block of rows x channels: all channels of a whole tensor, or those of one own
/// shard.
struct ChannelBlock {
  std::int64_t local = 0;  ///< its number among the own blocks
  std::int64_t channels = 0;
  std::int64_t first = 0;  ///< its first channel among those that this rank holds
  std::int64_t held = 0;   ///< channels that this rank holds

  /// The block of a tensor that holds these channels for any number of rows.
  /// Shapes: rows x channels.
  template <typename View>
  [[nodiscard]] View of(const View& tensor) const {
    const std::int64_t rows = tensor.count() / held;
    return tensor.flat_slice(rows * first, rows * channels).reshaped(Shape{rows, channels});
  }
};

/// The blocks that a rank holds of a tensor at `port`.
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

}  // namespace strata::nn
