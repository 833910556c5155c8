#include "strata/grid/grid.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"

namespace strata::grid {

Coordinates Grid::coordinates_of(std::int64_t rank) const {
  require(rank >= 0 && rank < ranks(), "rank {} is not on a grid of {}", rank, ranks());
  return {.data = rank / tensor % data,
          .pipeline = rank / (tensor * replicas()),
          .tensor = rank % tensor,
          .islands = rank / (tensor * data) % islands};
}

std::int64_t Grid::rank_of(const Coordinates& c) const {
  require(c.data >= 0 && c.data < data && c.pipeline >= 0 && c.pipeline < pipeline &&
              c.tensor >= 0 && c.tensor < tensor && c.islands >= 0 && c.islands < islands,
          "({}, {}, {}, {}) is not on the grid {}", c.data, c.pipeline, c.tensor, c.islands,
          text());
  return ((c.pipeline * islands + c.islands) * data + c.data) * tensor + c.tensor;
}

std::vector<std::int64_t> Grid::group_of(std::int64_t rank, Axis axis) const {
  Coordinates coordinates = coordinates_of(rank);
  const auto [coordinate, extent] = [&]() -> std::pair<std::int64_t Coordinates::*, std::int64_t> {
    switch (axis) {
      case Axis::kData:
        return {&Coordinates::data, data};
      case Axis::kPipeline:
        return {&Coordinates::pipeline, pipeline};
      case Axis::kTensor:
        return {&Coordinates::tensor, tensor};
      case Axis::kIslands:
        break;
    }
    return {&Coordinates::islands, islands};
  }();
  std::vector<std::int64_t> members;
  for (std::int64_t i = 0; i < extent; ++i) {
    coordinates.*coordinate = i;
    members.push_back(rank_of(coordinates));
  }
  return members;
}

std::string Grid::text() const {
  return fmt::format("{}{} data x {} pipeline x {} tensor",
                     islands == 1 ? "" : fmt::format("{} islands x ", islands), data, pipeline,
                     tensor);
}

Range even_part(std::int64_t count, std::int64_t parts, std::int64_t index) {
  const std::int64_t base = count / parts;
  const std::int64_t left_over = count % parts;
  const std::int64_t begin = index * base + std::min(index, left_over);
  return {begin, begin + base + (index < left_over ? 1 : 0)};
}

}  // namespace strata::grid
