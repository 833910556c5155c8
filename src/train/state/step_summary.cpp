#include "strata/train/step_summary.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"

namespace strata::train {
namespace {

/// Equal rows of doubles from every rank of a group.
class Gathered {
 public:
  /// Adds the duration of the all-gather to `exposed`; a group of one rank exchanges nothing.
  Gathered(comm::Communicator& group, const std::vector<double>& mine,
           comm::ExposedSeconds& exposed)
      : width_(mine.size()) {
    const double start = now_seconds();
    all_ = comm::gathered_rows(group, std::span(mine));
    exposed.of(group.axis()) += group.size() > 1 ? now_seconds() - start : 0.0;
  }

  [[nodiscard]] std::span<const double> row(std::int64_t rank) const {
    return std::span(all_).subspan(static_cast<std::size_t>(rank) * width_, width_);
  }

 private:
  std::size_t width_;
  std::vector<double> all_;
};

/// What precedes the squares: the requests, the loss, the number of counted targets, and then of
/// pairs of answers the number with a positive margin and the sum of the margins, or of each data
/// set its loss and its counted targets.
constexpr std::size_t kFurtherAt = 3;

/// The index of every slice of every parameter, in canonical order.
class NormSlots {
 public:
  explicit NormSlots(const plan::Plan& plan) {
    for (const nn::ParameterSpec& spec : plan.model->parameters()) {
      const bool split = spec.split != nn::kNotSplit;
      const auto slices = static_cast<std::size_t>(split ? plan.config.numerics.shards : 1);
      first_.push_back(is_split_.size());
      is_split_.insert(is_split_.end(), slices, split);
    }
  }

  [[nodiscard]] std::size_t count() const { return is_split_.size(); }
  [[nodiscard]] bool is_split(std::size_t slot) const { return is_split_[slot]; }
  [[nodiscard]] std::size_t of(std::int64_t parameter, std::int64_t shard) const {
    return first_[static_cast<std::size_t>(parameter)] + static_cast<std::size_t>(shard);
  }

 private:
  std::vector<std::size_t> first_;
  std::vector<bool> is_split_;
};

}  // namespace

StepSummary summarize_step(const plan::Plan& plan, const plan::RankPlan& rank, comm::Groups& groups,
                           RankState& state, StepRequests requests, const SampleSets& sets,
                           const std::optional<std::string>& part) {
  state.norm().begin(state.reducer().sums());
  groups.engine->drain();
  // Also synchronizes the squares.
  const std::vector<nn::MicrobatchLoss> losses = state.losses();
  const std::vector<double> squares = state.norm().partials();
  const std::vector<double> digests =
      part ? halves_of(state.digests(*part)) : std::vector<double>();

  // Over the data group: the requests, the number of counted targets, for each own lane the loss
  // and what is told apart, the partial sums of the norm.
  const bool pairs = compares_documents(plan);
  const auto rounds = static_cast<std::size_t>(plan.lanes.rounds());
  const auto further = pairs ? std::size_t{2} : 2 * static_cast<std::size_t>(sets.count);
  const std::size_t width = 1 + further;  // of a lane
  const auto lanes_at = std::size_t{2};
  const auto digests_at = lanes_at + rounds * width;
  const auto partials_at = digests_at + digests.size();
  std::vector<double> mine(digests_at);
  mine[0] = requests.encoded();
  std::size_t sample = 0;
  for (std::size_t m = 0; m < losses.size(); ++m) {
    double* const lane =
        &mine[lanes_at + m / static_cast<std::size_t>(plan.microbatches_per_lane) * width];
    mine[1] += static_cast<double>(losses[m].counted);
    lane[0] += losses[m].loss;
    if (pairs) {
      lane[1] += static_cast<double>(losses[m].correct);
      lane[2] += losses[m].margins();
    }
    for (std::size_t i = 0; sets.count > 0 && i < losses[m].samples.size(); ++i) {
      const std::int64_t set = sets.of_samples[sample++];
      lane[1 + 2 * set] += losses[m].samples[i].loss;
      lane[2 + 2 * set] += losses[m].samples[i].counted;
    }
  }
  mine.insert(mine.end(), digests.begin(), digests.end());
  mine.insert(mine.end(), squares.begin(), squares.end());
  StepSummary summary;
  const Gathered data(state.data_group(), mine, summary.communication);

  // By lane, the loss and then what is told apart.
  std::vector<std::vector<double>> lanes(
      width, std::vector<double>(static_cast<std::size_t>(plan.lanes.tree().leaves())));
  double counted = 0.0;  // whole numbers, exact in any order
  std::vector<std::span<const double>> partials;
  for (std::int64_t r = 0; r < plan.grid.data; ++r) {
    const std::span<const double> row = data.row(r);
    requests.add_encoded(row[0]);
    counted += row[1];
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto leaf =
          static_cast<std::size_t>(plan.lanes.leaf(r, static_cast<std::int64_t>(round)));
      for (std::size_t i = 0; i < width; ++i) {
        lanes[i][leaf] = row[lanes_at + round * width + i];
      }
    }
    partials.push_back(row.subspan(partials_at));
  }

  // Over the tensor group, then the pipeline group: what precedes the squares (of one stage), and
  // the squared norm of every slice of a parameter.
  const NormSlots slots(plan);
  const std::size_t first_digest = kFurtherAt + further;
  const std::size_t first_square = first_digest + digests.size();
  std::vector<double> model(first_square + slots.count());
  model[0] = requests.encoded();
  model[1] = grid::sum_in_tree(plan.lanes.tree(), lanes[0]);
  model[2] = counted;
  for (std::size_t i = 0; i < further; ++i) {
    model[kFurtherAt + i] = grid::sum_in_tree(plan.lanes.tree(), lanes[1 + i]);
  }
  for (std::int64_t r = 0; r < plan.grid.data; ++r) {
    for (std::size_t i = 0; i < digests.size(); ++i) {
      model[first_digest + i] += data.row(r)[digests_at + i];
    }
  }
  const std::vector<double> slice_squares = state.norm().squares(partials);
  for (std::size_t p = 0; p < slice_squares.size(); ++p) {
    const nn::PlacedParameter& placed = rank.layout.parameters[p];
    if (placed.spec.ownership == nn::Ownership::kOwned &&
        placed.spec.rule == nn::ParameterRule::kTrained) {
      model[first_square + slots.of(placed.index, placed.shard)] = slice_squares[p];
    }
  }
  const Gathered tensors(groups.along(grid::Axis::kTensor), model, summary.communication);
  // Loss, number of targets and squares of replicated parameters are equal on all tensor ranks. The
  // squares of slices are 0 except on the rank that owns the slice. One rank counts each element of
  // a digest.
  for (std::size_t i = 1; i < model.size(); ++i) {
    const bool split = i >= first_square && slots.is_split(i - first_square);
    const bool digest = i >= first_digest && i < first_square;
    model[i] = tensors.row(0)[i];
    for (std::int64_t t = 1; (split || digest) && t < plan.grid.tensor; ++t) {
      model[i] += tensors.row(t)[i];
    }
  }
  for (std::int64_t t = 0; t < plan.grid.tensor; ++t) {
    requests.add_encoded(tensors.row(t)[0]);
  }
  model[0] = requests.encoded();
  const Gathered stages(groups.along(grid::Axis::kPipeline), model, summary.communication);

  double square = 0.0;
  for (std::size_t i = 0; i < slots.count(); ++i) {
    double slice = 0.0;
    for (std::int64_t s = 0; s < plan.grid.pipeline; ++s) {
      slice += stages.row(s)[first_square + i];
    }
    square += slice;
  }
  for (std::int64_t s = 0; s < plan.grid.pipeline; ++s) {
    summary.requests.add_encoded(stages.row(s)[0]);
  }
  if (part) {
    std::vector<double> halves(digests.size());
    for (std::int64_t s = 0; s < plan.grid.pipeline; ++s) {
      for (std::size_t i = 0; i < halves.size(); ++i) {
        halves[i] += stages.row(s)[first_digest + i];
      }
    }
    summary.digests = digests_in(halves);
  }
  const std::span<const double> last = stages.row(loss_stage(plan));
  const double number = std::max(1.0, last[2]);
  summary.counted_share = last[2] / static_cast<double>(part_batch(plan) * plan.targets_per_sample);
  summary.grad_norm =
      summary.counted_share > 0.0 ? std::sqrt(square) / summary.counted_share : std::sqrt(square);
  summary.loss = last[1] / number;
  const std::span<const double> told_apart = last.subspan(kFurtherAt, further);
  if (pairs) {
    summary.accuracy = told_apart[0] / number;
    summary.margin = told_apart[1] / number;
  }
  for (std::size_t i = 0; !pairs && i < further; i += 2) {
    summary.sets.push_back({.loss = told_apart[i], .counted = told_apart[i + 1]});
  }
  return summary;
}

}  // namespace strata::train
