#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "strata/pipeline/schedule.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::app {

/// An SVG file of one step: ranks downwards, time to the right, a box for each compute action with
/// the number of its microbatch where the box has room, and for each sharding action that takes
/// time. `ranks`: the rank of each stage; empty: the stage itself. `width`: of the step; 0: with
/// room for numbers. Units: pixels; the simulation's times are milliseconds here. Pre: the
/// simulation has its actions.
[[nodiscard]] std::string svg_of(const pipeline::Schedule& schedule,
                                 const pipeline::Simulation& simulation,
                                 std::span<const std::int64_t> ranks = {}, double width = 0.0);

}  // namespace strata::app
