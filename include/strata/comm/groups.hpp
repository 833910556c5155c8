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
  /// Ranks with the same pipeline and tensor coordinates, in order of the data coordinate; the
  /// other groups likewise.
  std::unique_ptr<Communicator> data;
  /// The ranks of `data`, for messages that overlap with the gradients in flight there.
  std::unique_ptr<Communicator> lanes;
  std::unique_ptr<Communicator> pipeline;
  std::unique_ptr<Communicator> tensor;
  /// Ranks with the same place in different islands.
  std::unique_ptr<Communicator> islands;

  /// One after the other, all replicas in order.
  [[nodiscard]] std::array<Communicator*, 2> replicas() const {
    return {data.get(), islands.get()};
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
