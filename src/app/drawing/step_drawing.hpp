#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/pipeline/schedule.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::app {

/// The ranks of a picture's rows, which are stages there.
struct DrawnRanks {
  struct Group {
    std::string name;
    std::int64_t first = 0;  ///< its first row
  };
  std::vector<std::int64_t> ranks = {};  ///< empty: the stages themselves
  std::vector<Group> groups = {};        ///< named where there are several
};

/// An SVG file of one step: ranks downwards, time to the right, a box for each compute action with
/// the number of its microbatch where the box has room, and for each sharding action that takes
/// time. Input gradients that weight gradients do not follow are named backward passes. `width`:
/// of the step; 0: with room for numbers. Units: pixels; the simulation's times are milliseconds
/// here. Pre: the simulation has its actions.
[[nodiscard]] std::string svg_of(const pipeline::Schedule& schedule,
                                 const pipeline::Simulation& simulation,
                                 const DrawnRanks& rows = {}, double width = 0.0);

}  // namespace strata::app
