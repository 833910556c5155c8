#include "strata/grid/split.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "strata/core/error.hpp"

namespace strata::grid {
namespace {

double imbalance_of(std::span<const double> costs, std::span<const Range> stages) {
  double total = 0.0;
  double slowest = 0.0;
  for (const Range& stage : stages) {
    const double cost =
        std::accumulate(costs.begin() + stage.begin, costs.begin() + stage.end, 0.0);
    total += cost;
    slowest = std::max(slowest, cost);
  }
  return total > 0.0 ? slowest * static_cast<double>(stages.size()) / total : 1.0;
}

}  // namespace

std::int64_t StageSplit::stage_of(std::int64_t layer) const {
  const auto found = std::find_if(stages.begin(), stages.end(), [&](const Range& stage) {
    return layer >= stage.begin && layer < stage.end;
  });
  require(found != stages.end(), "no stage holds layer {}", layer);
  return found - stages.begin();
}

StageSplit balanced_split(std::span<const double> costs, std::int64_t stages) {
  const auto layers = static_cast<std::int64_t>(costs.size());
  require(stages >= 1 && stages <= layers, "{} stages for {} layers", stages, layers);
  std::vector<double> before(costs.size() + 1, 0.0);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);

  // best[s][n]: cost of the slowest stage in the best split of layers [n, layers) into s stages.
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  const auto row = static_cast<std::size_t>(layers) + 1;
  std::vector<std::vector<double>> best(static_cast<std::size_t>(stages) + 1,
                                        std::vector<double>(row, kImpossible));
  std::vector<std::vector<std::int64_t>> end = {static_cast<std::size_t>(stages) + 1,
                                                std::vector<std::int64_t>(row, 0)};
  best[0][static_cast<std::size_t>(layers)] = 0.0;
  for (std::size_t s = 1; s < best.size(); ++s) {
    for (std::size_t n = 0; n + 1 < row; ++n) {
      for (std::size_t m = row - 1; m > n; --m) {
        const double cost = std::max(before[m] - before[n], best[s - 1][m]);
        if (cost < best[s][n]) {
          best[s][n] = cost;
          end[s][n] = static_cast<std::int64_t>(m);
        }
      }
    }
  }
  StageSplit split;
  std::int64_t begin = 0;
  for (auto s = static_cast<std::size_t>(stages); s > 0; --s) {
    const std::int64_t stop = end[s][static_cast<std::size_t>(begin)];
    split.stages.push_back({begin, stop});
    begin = stop;
  }
  split.imbalance = imbalance_of(costs, split.stages);
  return split;
}

StageSplit explicit_split(std::span<const double> costs,
                          std::span<const std::int64_t> first_layers) {
  StageSplit split;
  for (std::size_t s = 0; s < first_layers.size(); ++s) {
    const std::int64_t end =
        s + 1 < first_layers.size() ? first_layers[s + 1] : static_cast<std::int64_t>(costs.size());
    require(first_layers[0] == 0 && first_layers[s] < end,
            "stage {} would begin at layer {} and end before layer {}", s, first_layers[s], end);
    split.stages.push_back({first_layers[s], end});
  }
  split.imbalance = imbalance_of(costs, split.stages);
  return split;
}

}  // namespace strata::grid
