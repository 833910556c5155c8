#pragma once

#include "strata/core/enum_names.hpp"

namespace strata::comm {

/// Who sums over shards and lanes.
enum class Summation {
  kInvariant,  ///< strata, in the order of a fixed tree, the same on every grid (design law 1)
  kLibrary     ///< the communication library, in its own order
};

constexpr auto enum_names(Summation) {
  return names_in_order("invariant", "fast");
}

}  // namespace strata::comm
