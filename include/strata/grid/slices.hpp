#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "strata/core/shape.hpp"
#include "strata/grid/grid.hpp"

namespace strata::grid {

/// A rectangular part of a tensor: `count[d]` indices from `start[d]` in each dimension.
struct Box {
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> count;

  [[nodiscard]] std::int64_t elements() const;
  friend bool operator==(const Box&, const Box&) = default;
};

/// The boxes that the row-major elements [range.begin, range.end) of a tensor make up, in element
/// order: at most two for each dimension and one more. A scalar gives one box without dimensions.
[[nodiscard]] std::vector<Box> boxes_of(const Shape& shape, const Range& range);

}  // namespace strata::grid
