#pragma once

#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/ops/attention.hpp"

namespace strata::ops {

/// A library's backward pass keeps the gradients of weights, in bfloat16. It is given parts of a
/// pass that keep at most so many of them, 512 MiB.
inline constexpr std::int64_t kMaxLibraryWeights = std::int64_t{1} << 28;

/// Whether a workspace that holds the gradients of weights can hold nothing else: of tokens x
/// tokens elements of 2 bytes a head, against queries' gradients in float32 and gradients of keys
/// and values for each query head, tokens x head_size x 8 bytes, and a rest.
[[nodiscard]] inline bool is_order_recognisable(const AttentionShape& shape) {
  return shape.tokens >= 5 * shape.head_size;
}

}  // namespace strata::ops
