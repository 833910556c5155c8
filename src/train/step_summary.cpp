#include "strata/train/step_summary.hpp"

#include <algorithm>
#include <cmath>

#include "strata/core/clock.hpp"

namespace strata::train {
namespace {

/// Equal rows of doubles from every rank of a group.
class Gathered {
 public:
  /// Adds the time that the exchange took to `seconds`.
  Gathered(comm::Communicator& group, const std::vector<double>& mine, double& seconds)
      : width_(mine.size()), all_(mine.size() * static_cast<std::size_t>(group.size())) {
    const double start = now_seconds();
    group.all_gather(comm::payload_of(std::span(mine)), comm::payload_of(std::span(all_)));
    seconds += now_seconds() - start;
  }

  [[nodiscard]] std::span<const double> row(std::int64_t rank) const {
    return std::span(all_).subspan(static_cast<std::size_t>(rank) * width_, width_);
  }

 private:
  std::size_t width_;
  std::vector<double> all_;
};

double flag_of(bool stop) {
  return stop ? 1.0 : 0.0;
}

}  // namespace

StepSummary summarise_step(ops::Context& context, const Plan& plan, const RankPlan& rank,
                           comm::Groups& groups, const RankState& state,
                           std::span<const ops::LossSums> losses, const ConstTensorView& gradients,
                           StopRequest stop) {
  // Over the data group: the stop request, the loss of each own lane, the partial sums of the norm.
  const std::int64_t own_lanes = plan.lanes.leaves() / plan.grid.data;
  const auto lanes_at = std::size_t{1};
  const auto partials_at = lanes_at + static_cast<std::size_t>(own_lanes);
  std::vector<double> mine(partials_at + static_cast<std::size_t>(state.norm().partial_count()));
  mine[0] = flag_of(stop == StopRequest::kStop);
  for (std::size_t m = 0; m < losses.size(); ++m) {
    mine[lanes_at + m / static_cast<std::size_t>(plan.microbatches_per_lane)] += losses[m].loss;
  }
  state.norm().partials(context, gradients, rank.place.data, std::span(mine).subspan(partials_at));
  StepSummary summary;
  const Gathered data(*groups.data, mine, summary.communication_seconds);

  bool stopping = false;
  std::vector<double> lane_losses;
  std::vector<std::span<const double>> partials;
  for (std::int64_t r = 0; r < plan.grid.data; ++r) {
    const std::span<const double> row = data.row(r);
    stopping = stopping || row[0] != 0.0;
    lane_losses.insert(lane_losses.end(), row.begin() + lanes_at,
                       row.begin() + static_cast<std::ptrdiff_t>(partials_at));
    partials.push_back(row.subspan(partials_at));
  }

  // Over the pipeline group: the stop request, the loss (of the last stage), and the squared norm
  // of every tensor.
  std::vector<double> model(2 + plan.model->parameters().size());
  model[0] = flag_of(stopping);
  model[1] = grid::sum_in_tree(plan.lanes, lane_losses);
  const std::vector<double> squares = state.norm().squares(partials);
  for (std::size_t p = 0; p < squares.size(); ++p) {
    model[2 + static_cast<std::size_t>(rank.layout.parameters[p].index)] = squares[p];
  }
  const Gathered stages(*groups.pipeline, model, summary.communication_seconds);

  double square = 0.0;
  for (std::size_t p = 0; p < plan.model->parameters().size(); ++p) {
    std::int64_t owner = 0;
    while (plan.model->parameters()[p].layer >=
           plan.split.stages[static_cast<std::size_t>(owner)].end) {
      ++owner;
    }
    square += stages.row(owner)[2 + p];
  }
  for (std::int64_t s = 0; s < plan.grid.pipeline; ++s) {
    if (stages.row(s)[0] != 0.0) {
      summary.stop = StopRequest::kStop;
    }
  }
  summary.grad_norm = std::sqrt(square);
  summary.loss =
      stages.row(plan.grid.pipeline - 1)[1] / static_cast<double>(plan.config.batch.global);
  return summary;
}

}  // namespace strata::train
