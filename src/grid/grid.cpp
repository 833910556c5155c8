#include "strata/grid/grid.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"

namespace strata::grid {

Coordinates Grid::coordinates_of(std::int64_t rank) const {
  require(rank >= 0 && rank < ranks(), "rank {} is not on a grid of {}", rank, ranks());
  return {
      .data = rank / tensor % data, .pipeline = rank / (tensor * data), .tensor = rank % tensor};
}

std::int64_t Grid::rank_of(const Coordinates& c) const {
  require(c.data >= 0 && c.data < data && c.pipeline >= 0 && c.pipeline < pipeline &&
              c.tensor >= 0 && c.tensor < tensor,
          "({}, {}, {}) is not on the grid {}", c.data, c.pipeline, c.tensor, text());
  return (c.pipeline * data + c.data) * tensor + c.tensor;
}

std::vector<std::int64_t> Grid::group_of(std::int64_t rank, Axis axis) const {
  Coordinates coordinates = coordinates_of(rank);
  std::int64_t Coordinates::*const coordinate = axis == Axis::kData       ? &Coordinates::data
                                                : axis == Axis::kPipeline ? &Coordinates::pipeline
                                                                          : &Coordinates::tensor;
  const std::int64_t extent = axis == Axis::kData       ? data
                              : axis == Axis::kPipeline ? pipeline
                                                        : tensor;
  std::vector<std::int64_t> members;
  for (std::int64_t i = 0; i < extent; ++i) {
    coordinates.*coordinate = i;
    members.push_back(rank_of(coordinates));
  }
  return members;
}

std::string Grid::text() const {
  return fmt::format("{} data x {} pipeline x {} tensor", data, pipeline, tensor);
}

Range even_part(std::int64_t count, std::int64_t parts, std::int64_t index) {
  const std::int64_t base = count / parts;
  const std::int64_t left_over = count % parts;
  const std::int64_t begin = index * base + std::min(index, left_over);
  return {begin, begin + base + (index < left_over ? 1 : 0)};
}

}  // namespace strata::grid
