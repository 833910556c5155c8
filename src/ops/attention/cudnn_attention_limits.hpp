#pragma once

#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/ops/attention.hpp"

namespace strata::ops {

/// cuDNN's backward pass stores the gradients of attention weights in bfloat16. A part of a pass
/// has at most this many of them, 512 MiB.
inline constexpr std::int64_t kMaxLibraryWeights = std::int64_t{1} << 28;

/// Whether the workspace size tells if a kernel stores the gradients of weights (tokens x tokens x
/// 2 bytes for each head): they must exceed what other kernels need, gradients of queries in
/// float32 and of keys and values for each query head, tokens x head_size x 8 bytes, plus a margin.
[[nodiscard]] inline bool is_order_recognisable(const AttentionShape& shape) {
  return shape.tokens >= 5 * shape.head_size;
}

}  // namespace strata::ops
