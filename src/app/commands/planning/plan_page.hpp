#pragma once

#include <cstdint>
#include <string>

#include "strata/forecast/grid_search.hpp"

#include "commands/planning/plan_view.hpp"

namespace strata::app {

/// A page about a planned run: its step, its ranks on the nodes, memory, a picture of the step and
/// the end of training. `node_ranks`: of a node. `search`: the grids to compare with, or null.
[[nodiscard]] std::string plan_page(const PlanView& view, const std::string& title,
                                    std::int64_t node_ranks,
                                    const forecast::SearchResult* search = nullptr);

}  // namespace strata::app
