#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"

namespace strata::grid {

/// The axes of a grid of ranks. A further one is an enumerator, its name, a member of Coordinates
/// and of Grid, and a row of kAxes; RunConfig gives its extent.
enum class Axis { kData, kPipeline, kTensor, kIslands };

constexpr auto enum_names(Axis) {
  return names_in_order("data", "pipeline", "tensor", "islands");
}

/// A rank's place on the grid.
struct Coordinates {
  std::int64_t data = 0;
  std::int64_t pipeline = 0;
  std::int64_t tensor = 0;
  std::int64_t islands = 0;

  [[nodiscard]] std::int64_t& operator[](Axis axis);
  [[nodiscard]] std::int64_t operator[](Axis axis) const;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

/// Extents of the grid. Tensor varies fastest over the ranks, then data, then islands, then
/// pipeline, so that tensor groups are neighbours and pipeline stages are furthest apart.
struct Grid {
  std::int64_t data = 1;  ///< replicas of one island
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t islands = 1;  ///< that different ranks hold

  [[nodiscard]] std::int64_t operator[](Axis axis) const;
  [[nodiscard]] std::int64_t replicas() const { return data * islands; }
  [[nodiscard]] std::int64_t ranks() const;

  /// Pre: 0 <= rank < ranks().
  [[nodiscard]] Coordinates coordinates_of(std::int64_t rank) const;
  /// Pre: each coordinate lies within its extent.
  [[nodiscard]] std::int64_t rank_of(const Coordinates& coordinates) const;
  /// Ranks that differ from `rank` at most in the coordinate of `axis`, in order of that
  /// coordinate.
  [[nodiscard]] std::vector<std::int64_t> group_of(std::int64_t rank, Axis axis) const;
  /// Ranks from one member of a group along `axis` to the next.
  [[nodiscard]] std::int64_t stride(Axis axis) const;
  /// As in "2 data x 2 pipeline x 1 tensor", with islands in front where there are several.
  [[nodiscard]] std::string text() const;

  friend bool operator==(const Grid&, const Grid&) = default;
};

/// The members of an axis.
struct AxisMembers {
  Axis axis;
  std::int64_t Coordinates::*coordinate;
  std::int64_t Grid::*extent;
};

/// In the order in which coordinates vary over the ranks, the fastest first.
inline constexpr std::array kAxes{
    AxisMembers{Axis::kTensor, &Coordinates::tensor, &Grid::tensor},
    AxisMembers{Axis::kData, &Coordinates::data, &Grid::data},
    AxisMembers{Axis::kIslands, &Coordinates::islands, &Grid::islands},
    AxisMembers{Axis::kPipeline, &Coordinates::pipeline, &Grid::pipeline},
};
static_assert(kAxes.size() == enum_table<Axis>().size());

/// A half-open range of indices: of elements, samples, lanes or layers.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t count() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Part `index` of `count` items dealt evenly to `parts`; earlier parts get the items left over.
[[nodiscard]] Range even_part(std::int64_t count, std::int64_t parts, std::int64_t index);

}  // namespace strata::grid
