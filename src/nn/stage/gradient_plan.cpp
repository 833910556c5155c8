#include "stage/gradient_plan.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

namespace strata::nn {

std::vector<std::int64_t> assign_offsets(std::span<const Interval> intervals) {
  std::vector<std::size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return intervals[a].bytes > intervals[b].bytes;
  });
  std::vector<std::int64_t> offsets(intervals.size(), 0);
  std::map<std::int64_t, std::vector<std::size_t>> placed;  // by each step of theirs
  for (const std::size_t next : order) {
    const Interval& interval = intervals[next];
    std::vector<std::size_t> concurrent;
    for (std::int64_t step = interval.begin; step <= interval.end; ++step) {
      std::vector<std::size_t>& others = placed[step];
      std::ranges::copy_if(others, std::back_inserter(concurrent), [&](std::size_t other) {
        return step == std::max(interval.begin, intervals[other].begin);  // the first common step
      });
      others.push_back(next);
    }
    std::sort(concurrent.begin(), concurrent.end(),
              [&](std::size_t a, std::size_t b) { return offsets[a] < offsets[b]; });
    std::int64_t offset = 0;
    for (const std::size_t other : concurrent) {
      if (offset + interval.bytes <= offsets[other]) {
        break;
      }
      offset = std::max(offset, offsets[other] + intervals[other].bytes);
    }
    offsets[next] = offset;
  }
  return offsets;
}

namespace {

class Planner {
 public:
  Planner(const Model& model, const StageSpec& spec) : model_(model), spec_(spec) {
    plan_.layers.resize(static_cast<std::size_t>(spec.layers.count()));
    for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
      const LayerSources& sources = model.sources(i);
      first_readers_.try_emplace(sources.input, i);
      if (sources.added) {
        first_readers_.try_emplace(*sources.added, i);
      }
    }
  }

  GradientPlan plan() {
    const bool ends = spec_.layers.end == model_.layer_count();
    for (const std::int64_t tensor : model_.boundary_tensors(spec_.layers.end)) {
      if (tensor == kModelInput && !ends) {
        continue;
      }
      plan_.received.push_back(
          take({local_shape(model_.port_of(tensor), spec_.pass), spec_.pass.dtype},
               GradientPlan::Home::kSlot));
      sums_[tensor] = plan_.received.back();
    }
    for (std::int64_t layer = spec_.layers.end; layer-- > spec_.layers.begin; ++now_) {
      if (!model_.layer(layer).is_view()) {
        visit(layer);
      }
    }
    for (const std::int64_t tensor : model_.boundary_tensors(spec_.layers.begin)) {
      if (tensor != kModelInput) {
        plan_.sent.push_back(sums_.at(tensor));
      }
    }
    return std::move(plan_);
  }

 private:
  void visit(std::int64_t layer) {
    GradientPlan::LayerGradients& gradients =
        plan_.layers[static_cast<std::size_t>(layer - spec_.layers.begin)];
    gradients.output = used(sums_.at(layer));
    const LayerSources& sources = model_.sources(layer);
    if (sources.added && *sources.added != kModelInput) {
      // A gradient that is sent needs memory of its own; otherwise the output's gradient serves.
      const std::int64_t tensor = *sources.added;
      if (is_sent(tensor, layer)) {
        gradients.added = take_gradient(tensor, layer);
      }
      gradients.added_sum =
          add(tensor, gradients.added == GradientPlan::kNone ? gradients.output : gradients.added);
    }
    if (sources.input != kModelInput) {
      gradients.input = take_gradient(sources.input, layer);
      gradients.input_sum = add(sources.input, gradients.input);
    }
    for (const TensorSpec& inner : model_.layer(layer).gradients(spec_.pass)) {
      gradients.inner.push_back(take(inner, home()));
    }
  }

  [[nodiscard]] GradientPlan::Home home() const {
    return spec_.order == BackwardOrder::kFused ? GradientPlan::Home::kShared
                                                : GradientPlan::Home::kSlot;
  }

  std::int64_t take(const TensorSpec& tensor, GradientPlan::Home home) {
    plan_.pieces.push_back({.tensor = tensor, .home = home, .begin = now_, .end = now_});
    return std::ssize(plan_.pieces) - 1;
  }

  /// Whether a layer completes a gradient that an earlier stage waits for.
  [[nodiscard]] bool is_sent(std::int64_t tensor, std::int64_t layer) const {
    return tensor < spec_.layers.begin && first_readers_.at(tensor) == layer;
  }

  std::int64_t take_gradient(std::int64_t tensor, std::int64_t layer) {
    return take({local_shape(model_.port_of(tensor), spec_.pass), spec_.pass.dtype},
                is_sent(tensor, layer) ? GradientPlan::Home::kSlot : home());
  }

  std::int64_t used(std::int64_t piece) {
    plan_.pieces[static_cast<std::size_t>(piece)].end = now_;
    return piece;
  }

  /// Makes `piece` the running sum of a tensor's gradient and returns the sum to add to it.
  std::int64_t add(std::int64_t tensor, std::int64_t piece) {
    const auto [entry, first] = sums_.try_emplace(tensor, piece);
    const std::int64_t before = first ? GradientPlan::kNone : used(entry->second);
    entry->second = piece;
    return before;
  }

  const Model& model_;
  const StageSpec& spec_;
  GradientPlan plan_;
  /// The first layer of the stage that reads a tensor.
  std::map<std::int64_t, std::int64_t> first_readers_;
  std::map<std::int64_t, std::int64_t> sums_;
  std::int64_t now_ = 0;
};

}  // namespace

GradientPlan plan_gradients(const Model& model, const StageSpec& spec) {
  return Planner(model, spec).plan();
}

}  // namespace strata::nn
