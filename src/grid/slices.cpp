#include "strata/grid/slices.hpp"

#include <algorithm>

#include "strata/core/error.hpp"

namespace strata::grid {

std::int64_t Box::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : count) {
    product *= extent;
  }
  return product;
}

std::vector<Box> boxes_of(const Shape& shape, const Range& range) {
  require(range.begin >= 0 && range.begin <= range.end && range.end <= shape.count(),
          "elements [{}, {}) of a tensor of {}", range.begin, range.end, shape.text());
  const std::size_t rank = shape.rank();
  std::vector<std::int64_t> strides(rank, 1);
  for (std::size_t d = rank; d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d];
  }
  std::vector<Box> boxes;
  // Greedy: from each position, take the largest box of whole rows that stays within the range.
  for (std::int64_t position = range.begin; position < range.end;) {
    Box box{.start = std::vector<std::int64_t>(rank, 0),
            .count = std::vector<std::int64_t>(rank, 1)};
    std::int64_t rest = position;
    for (std::size_t d = 0; d < rank; ++d) {
      box.start[d] = rest / strides[d];
      rest %= strides[d];
    }
    std::size_t dimension = rank;
    while (dimension > 1 && box.start[dimension - 1] == 0 &&
           position + strides[dimension - 2] <= range.end) {
      --dimension;
    }
    if (dimension > 0) {
      const std::size_t d = dimension - 1;
      box.count[d] = std::min(shape[d] - box.start[d], (range.end - position) / strides[d]);
      for (std::size_t inner = dimension; inner < rank; ++inner) {
        box.count[inner] = shape[inner];
      }
    }
    position += box.elements();
    boxes.push_back(std::move(box));
  }
  return boxes;
}

}  // namespace strata::grid
