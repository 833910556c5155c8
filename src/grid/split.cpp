#include "strata/grid/split.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

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

  // best[n]: cost of the slowest stage in the best split of layers [n, layers) into s + 1 stages.
  // end[s][n]: the first stage of that split ends there. Where it ends later, the first stage is no
  // cheaper and the others are no dearer, so that it ends where one overtakes the other.
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  const std::size_t last = costs.size();
  std::vector<double> best(last + 1, kImpossible);
  best[last] = 0.0;
  std::vector<std::vector<std::uint32_t>> end(static_cast<std::size_t>(stages));
  for (std::size_t s = 0; s < end.size(); ++s) {
    const std::size_t most = last - s;  // s stages follow, of a layer at least
    const std::vector<double> others = std::exchange(best, std::vector(last + 1, kImpossible));
    end[s].resize(most);
    std::size_t dearer = most + 1;  // from this end on, the first stage is the dearest
    for (std::size_t n = most; n-- > 0;) {
      while (dearer - 1 > n && before[dearer - 1] - before[n] >= others[dearer - 1]) {
        --dearer;
      }
      std::size_t stop = dearer - 1;
      const bool first_is =
          dearer <= most && (stop == n || before[dearer] - before[n] <= others[stop]);
      if (first_is) {
        // Layers that cost nothing join it.
        const double cost = before[dearer] - before[n];
        const auto after =
            std::partition_point(before.begin() + static_cast<std::ptrdiff_t>(dearer),
                                 before.begin() + static_cast<std::ptrdiff_t>(most) + 1,
                                 [&](double sum) { return sum - before[n] <= cost; });
        stop = static_cast<std::size_t>(after - before.begin()) - 1;
      }
      best[n] = std::max(before[stop] - before[n], others[stop]);
      end[s][n] = static_cast<std::uint32_t>(stop);
    }
  }
  StageSplit split;
  std::int64_t begin = 0;
  for (std::size_t s = end.size(); s-- > 0;) {
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

std::vector<std::int64_t> divisors_of(std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d * d <= number; ++d) {
    if (number % d == 0) {
      divisors.push_back(d);
      if (d * d != number) {
        divisors.push_back(number / d);
      }
    }
  }
  std::ranges::sort(divisors);
  return divisors;
}

}  // namespace strata::grid
