#include "strata/comm/groups.hpp"

#include "strata/core/error.hpp"

namespace strata::comm {

Groups make_groups(Communicator& world, const grid::Grid& grid) {
  require(grid.ranks() == world.size(), "a grid of {} ranks over {} processes", grid.ranks(),
          world.size());
  Groups groups;
  groups.grid = grid;
  groups.place = grid.coordinates_of(world.rank());
  groups.world = &world;
  const auto along = [&](grid::Axis axis, std::string_view name) {
    return world.subgroup(grid.group_of(world.rank(), axis), std::string(name) + " group");
  };
  groups.data = along(grid::Axis::kData, "data");
  groups.lanes = along(grid::Axis::kData, "lane");
  groups.pipeline = along(grid::Axis::kPipeline, "pipeline");
  groups.tensor = along(grid::Axis::kTensor, "tensor");
  return groups;
}

}  // namespace strata::comm
