#include "strata/comm/groups.hpp"

#include "strata/core/error.hpp"

namespace strata::comm {

std::vector<Route> pipeline_routes(std::int64_t stages) {
  std::vector<Route> routes;
  for (const std::int64_t first : {0, 1}) {
    for (std::int64_t s = first; s + 1 < stages; s += 2) {
      routes.push_back({.from = s, .to = s + 1, .tag = Tag::kActivation});
    }
    for (std::int64_t s = first; s + 1 < stages; s += 2) {
      routes.push_back({.from = s + 1, .to = s, .tag = Tag::kGradient});
    }
  }
  if (stages > 1) {
    routes.push_back({.from = stages - 1, .to = 0, .tag = Tag::kReduce});
    routes.push_back({.from = 0, .to = stages - 1, .tag = Tag::kGather});
  }
  return routes;
}

Groups make_groups(Communicator& world, ProgressEngine& engine, const grid::Grid& grid) {
  require(grid.ranks() == world.size(), "a grid of {} ranks over {} processes", grid.ranks(),
          world.size());
  Groups groups;
  groups.grid = grid;
  groups.coordinates = grid.coordinates_of(world.rank());
  groups.world = &world;
  groups.engine = &engine;
  const auto along = [&](grid::Axis axis, std::string_view name) {
    auto group = world.subgroup(grid.group_of(world.rank(), axis), std::string(name) + " group");
    group->set_axis(axis);
    return group;
  };
  groups.data = along(grid::Axis::kData, "data");
  groups.lanes = along(grid::Axis::kData, "lane");
  groups.pipeline = along(grid::Axis::kPipeline, "pipeline");
  groups.tensor = along(grid::Axis::kTensor, "tensor");
  groups.pipeline->open_routes(pipeline_routes(grid.pipeline));
  return groups;
}

}  // namespace strata::comm
