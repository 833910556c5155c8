#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/ops/context.hpp"

namespace strata::ops {

/// A result of oneDNN that must be the same bits whenever it is computed.
struct LibraryCase {
  std::string name;  ///< as in "a bfloat16 product of 32 x 48 over 1024"
  /// Computes it from the same values, with all operands `shift` elements behind an aligned
  /// address.
  std::function<std::vector<std::byte>(std::int64_t shift)> compute;
};

/// Small products and convolutions in all their passes; none in float64, which is own code. The
/// context outlives the cases.
[[nodiscard]] std::vector<LibraryCase> library_cases(Context& context, DType dtype);

/// What law 1 needs of oneDNN: a primitive that runs again, at the same addresses or at others,
/// gives the same bits.
/// Throws: Error(kPeer) that names the first case which does not, and what to do.
void require_repeatable(std::span<const LibraryCase> cases);

/// Holds the library_cases() of `dtype` to require_repeatable(), in a context of their own; takes
/// milliseconds.
void check_library(DType dtype);

}  // namespace strata::ops
