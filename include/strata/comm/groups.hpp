#pragma once

#include <cstdint>
#include <memory>
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
  /// Ranks with the same pipeline and tensor coordinates, in order of the data coordinate; and so
  /// on.
  std::unique_ptr<Communicator> data;
  /// The same ranks as data, for what they exchange while the gradients are under way there.
  std::unique_ptr<Communicator> lanes;
  std::unique_ptr<Communicator> pipeline;
  std::unique_ptr<Communicator> tensor;
};

/// What stages send each other: activations and gradients between neighbours, and a tied table's
/// gradients and weights between the last stage and the first. Routes that share no rank stand one
/// after the other.
[[nodiscard]] std::vector<Route> pipeline_routes(std::int64_t stages);

/// Splits the world along the axes of the grid.
/// Pre: grid.ranks() == world.size(). Communication: collective over the world.
[[nodiscard]] Groups make_groups(Communicator& world, ProgressEngine& engine,
                                 const grid::Grid& grid);

}  // namespace strata::comm
