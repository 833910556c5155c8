#include "strata/grid/grid.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"

namespace strata::grid {

namespace {

const AxisMembers& members_of(Axis axis) {
  return *std::ranges::find(kAxes, axis, &AxisMembers::axis);
}

}  // namespace

std::int64_t& Coordinates::operator[](Axis axis) {
  return this->*members_of(axis).coordinate;
}

std::int64_t Coordinates::operator[](Axis axis) const {
  return this->*members_of(axis).coordinate;
}

std::int64_t Grid::operator[](Axis axis) const {
  return this->*members_of(axis).extent;
}

std::int64_t Grid::ranks() const {
  std::int64_t ranks = 1;
  for (const AxisMembers& axis : kAxes) {
    ranks *= this->*axis.extent;
  }
  return ranks;
}

Coordinates Grid::coordinates_of(std::int64_t rank) const {
  require(rank >= 0 && rank < ranks(), "rank {} is not on a grid of {}", rank, ranks());
  Coordinates coordinates;
  for (const AxisMembers& axis : kAxes) {
    coordinates.*axis.coordinate = rank % (this->*axis.extent);
    rank /= this->*axis.extent;
  }
  return coordinates;
}

std::int64_t Grid::rank_of(const Coordinates& coordinates) const {
  std::int64_t rank = 0;
  for (const AxisMembers& axis : kAxes) {
    const std::int64_t coordinate = coordinates.*axis.coordinate;
    require(coordinate >= 0 && coordinate < this->*axis.extent, "{} {} is not on the grid {}",
            name_of(axis.axis), coordinate, text());
    rank += coordinate * stride(axis.axis);
  }
  return rank;
}

std::vector<std::int64_t> Grid::group_of(std::int64_t rank, Axis axis) const {
  const std::int64_t first = rank - coordinates_of(rank)[axis] * stride(axis);
  std::vector<std::int64_t> members;
  for (std::int64_t i = 0; i < (*this)[axis]; ++i) {
    members.push_back(first + i * stride(axis));
  }
  return members;
}

std::int64_t Grid::stride(Axis axis) const {
  std::int64_t stride = 1;
  for (const AxisMembers& faster : kAxes) {
    if (faster.axis == axis) {
      break;
    }
    stride *= this->*faster.extent;
  }
  return stride;
}

std::string Grid::text() const {
  std::vector<std::string> extents;
  for (const auto& [axis, name] : enum_table<Axis>()) {
    if (axis != Axis::kIslands) {
      extents.push_back(fmt::format("{} {}", (*this)[axis], name));
    } else if (islands != 1) {
      extents.insert(extents.begin(), fmt::format("{} {}", islands, name));
    }
  }
  return fmt::format("{}", fmt::join(extents, " x "));
}

Range even_part(std::int64_t count, std::int64_t parts, std::int64_t index) {
  const std::int64_t base = count / parts;
  const std::int64_t left_over = count % parts;
  const std::int64_t begin = index * base + std::min(index, left_over);
  return {begin, begin + base + (index < left_over ? 1 : 0)};
}

}  // namespace strata::grid
