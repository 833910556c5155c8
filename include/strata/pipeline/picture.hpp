#pragma once

#include <string>

#include "strata/pipeline/schedule.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::pipeline {

/// An SVG of one step: ranks downwards, time to the right, a box for each compute action with the
/// number of its microbatch. Pre: the simulation has its actions.
[[nodiscard]] std::string picture_of(const Schedule& schedule, const Simulation& simulation);

}  // namespace strata::pipeline
