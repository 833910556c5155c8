#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "strata/core/enum_names.hpp"

namespace strata::comm {

/// Who sums over shards and lanes.
enum class Summation {
  kInvariant,  ///< strata, in the order of a fixed tree, the same on every grid (design law 1)
  kLibrary     ///< the communication library, in its own order
};

}  // namespace strata::comm

namespace strata {
template <>
struct EnumNames<comm::Summation> {
  static constexpr std::array<std::pair<comm::Summation, std::string_view>, 2> kTable{
      {{comm::Summation::kInvariant, "invariant"}, {comm::Summation::kLibrary, "fast"}}};
};
}  // namespace strata
