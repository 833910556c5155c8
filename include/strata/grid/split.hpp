#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/grid/grid.hpp"

namespace strata::grid {

/// A division of consecutive layers among stages.
struct StageSplit {
  std::vector<Range> stages;

  /// The stage that holds a layer. Pre: one does.
  [[nodiscard]] std::int64_t stage_of(std::int64_t layer) const;
  /// Cost of the slowest stage over the mean cost of a stage; 1 is perfect.
  double imbalance = 1.0;
};

/// The split of `costs.size()` layers into `stages` non-empty runs whose slowest run is cheapest;
/// among equals, the one whose earlier stages are longest. Pre: 1 <= stages <= costs.size(), costs
/// >= 0.
[[nodiscard]] StageSplit balanced_split(std::span<const double> costs, std::int64_t stages);

/// The split whose stages begin at the given layers; the first must be 0 and they must ascend.
[[nodiscard]] StageSplit explicit_split(std::span<const double> costs,
                                        std::span<const std::int64_t> first_layers);

/// All divisors, ascending.
[[nodiscard]] std::vector<std::int64_t> divisors_of(std::int64_t number);

}  // namespace strata::grid
