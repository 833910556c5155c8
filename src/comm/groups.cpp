#include "strata/comm/groups.hpp"

#include <map>

#include "strata/core/error.hpp"

namespace strata::comm {

std::vector<Route> pipeline_routes(std::span<const std::int64_t> stages) {
  std::vector<std::int64_t> chunks;
  std::map<std::int64_t, std::int64_t> chunks_of;
  for (const std::int64_t stage : stages) {
    chunks.push_back(chunks_of[stage]++);
  }
  std::vector<Route> routes;
  const auto add = [&](std::size_t from, std::size_t to, Tag kind) {
    if (stages[from] != stages[to]) {
      routes.push_back({.from = stages[from], .to = stages[to], .tag = tag_of(kind, chunks[to])});
    }
  };
  for (const std::size_t first : {0, 1}) {
    for (std::size_t i = first; i + 1 < stages.size(); i += 2) {
      add(i, i + 1, Tag::kActivation);
    }
    for (std::size_t i = first; i + 1 < stages.size(); i += 2) {
      add(i + 1, i, Tag::kGradient);
    }
  }
  if (!stages.empty() && stages.front() != stages.back()) {
    routes.push_back({.from = stages.back(), .to = stages.front(), .tag = Tag::kReduce});
    routes.push_back({.from = stages.front(), .to = stages.back(), .tag = Tag::kGather});
  }
  return routes;
}

Groups make_groups(Communicator& world, ProgressEngine& engine, const grid::Grid& grid,
                   std::span<const Route> routes) {
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
  for (const auto& [axis, name] : enum_table<grid::Axis>()) {
    groups.axes[static_cast<std::size_t>(axis)] = along(axis, name);
  }
  groups.lanes = along(grid::Axis::kData, "lane");
  groups.along(grid::Axis::kPipeline).open_routes(routes);
  return groups;
}

}  // namespace strata::comm
