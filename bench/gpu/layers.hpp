#pragma once

#include <cstdint>
#include <vector>

#include "roofline.hpp"

namespace strata::bench {

/// Of norms.
inline constexpr double kEpsilon = 1e-5;

/// A layer of a language model in bfloat16, its embedding and its head.
struct TransformerSizes {
  std::int64_t batch = 8;
  std::int64_t tokens = 1024;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t vocabulary = 50257;

  [[nodiscard]] std::int64_t rows() const { return batch * tokens; }
};

/// A bottleneck block of a residual network in bfloat16.
struct ResidualBlockSizes {
  std::int64_t images = 128;
  std::int64_t side = 56;
  /// Of the inner convolutions; the block's input and output have four times as many.
  std::int64_t channels = 64;
};

/// The operations of a training step, as a layer on one rank calls them: weight gradients are
/// float32 and are added to those of the microbatches before.
[[nodiscard]] std::vector<Operation> transformer_operations(const TransformerSizes& sizes);
[[nodiscard]] std::vector<Operation> residual_block_operations(const ResidualBlockSizes& sizes);

}  // namespace strata::bench
