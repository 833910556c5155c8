#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/comm/progress_engine.hpp"
#include "strata/grid/grid.hpp"

namespace strata::comm {

/// This rank's coordinates on the grid, the communicators along its axes, and the engine of their
/// transport.
struct Groups {
  grid::Grid grid;
  grid::Coordinates coordinates;
  Communicator* world = nullptr;
  ProgressEngine* engine = nullptr;
  /// Along each axis, the ranks that differ in no other coordinate, in order of that coordinate.
  std::array<std::unique_ptr<Communicator>, enum_table<grid::Axis>().size()> axes;
  /// The ranks of the data group, for messages that overlap with the gradients in flight there.
  std::unique_ptr<Communicator> lanes;

  [[nodiscard]] Communicator& along(grid::Axis axis) const {
    return *axes[static_cast<std::size_t>(axis)];
  }
  /// One after the other, all replicas in order.
  [[nodiscard]] std::array<Communicator*, 2> replicas() const {
    return {&along(grid::Axis::kData), &along(grid::Axis::kIslands)};
  }
};

/// The routes between stages: activations and gradients between chunks that follow each other, and
/// a tied table's gradients and weights between the last chunk and the first. `stages`: of each
/// chunk, in layer order. Chunks of a stage are numbered in that order. Routes without a common
/// rank are consecutive where each stage has one chunk.
[[nodiscard]] std::vector<Route> pipeline_routes(std::span<const std::int64_t> stages);

/// Splits the world along the axes of the grid. `routes`: those of pipeline_routes().
/// Pre: grid.ranks() == world.size(). Communication: collective over the world.
[[nodiscard]] Groups make_groups(Communicator& world, ProgressEngine& engine,
                                 const grid::Grid& grid, std::span<const Route> routes);

}  // namespace strata::comm
