#include "strata/plan/step_trace.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "strata/optim/gradient_norm.hpp"
#include "strata/optim/gradient_reducer.hpp"
#include "strata/optim/optimizer.hpp"
#include "strata/optim/tied_exchange.hpp"
#include "strata/optim/weight_gather.hpp"
#include "strata/plan/replication.hpp"

namespace strata::plan {
namespace {

bool has_streams(const Plan& plan) {
  return plan.device == device::DeviceKind::kCuda;
}

/// Lists the layers of all chunks from the last to the first.
template <typename Use>
void for_layers_backward(const RankPlan& rank, const Use& use) {
  for (auto chunk = rank.chunks.rbegin(); chunk != rank.chunks.rend(); ++chunk) {
    for (std::int64_t layer = chunk->layers.end; layer-- > chunk->layers.begin;) {
      use(chunk->layers, layer);
    }
  }
}

}  // namespace

comm::GroupSite group_site(const Plan& plan, const grid::Coordinates& coordinates, grid::Axis axis,
                           std::int64_t node_ranks) {
  const std::int64_t ranks = plan.grid[axis];
  return {.axis = axis,
          .rank = coordinates[axis],
          .ranks = ranks,
          .in_node = std::clamp<std::int64_t>(node_ranks / plan.grid.stride(axis), 1, ranks),
          .has_streams = has_streams(plan)};
}

std::vector<PassTrace> trace_passes(const Plan& plan, const RankPlan& rank,
                                    std::int64_t node_ranks) {
  const nn::LayerSites sites{
      .tensor = group_site(plan, rank.coordinates, grid::Axis::kTensor, node_ranks),
      .data = group_site(plan, rank.coordinates, grid::Axis::kData, node_ranks),
      .summation = plan.config.numerics.mode};
  std::map<std::string, std::size_t> known;
  std::vector<PassTrace> passes;
  for (const nn::StageSpec& chunk : rank.chunks) {
    for (std::int64_t layer = chunk.layers.begin; layer < chunk.layers.end; ++layer) {
      const auto [found, is_new] =
          known.try_emplace(nn::trace_key(*plan.model, layer), passes.size());
      if (is_new) {
        passes.push_back(
            {nn::trace_layer(*plan.model, layer, chunk, sites, ops::Accumulate::kAdd), 0});
      }
      ++passes[found->second].layers;
    }
  }
  return passes;
}

StepTrace trace_step(const Plan& plan, const RankPlan& rank, std::int64_t node_ranks) {
  const config::RunConfig& c = plan.config;
  const grid::Coordinates& at = rank.coordinates;
  comm::Trace trace;
  ops::Context context = ops::Context::planned(trace);
  comm::PlannedGroup data(trace, group_site(plan, at, grid::Axis::kData, node_ranks));
  const device::Buffer weight_memory(device::Device::planned(),
                                     rank.layout.weight_elements * size_bytes(c.numerics.dtype));
  const TensorView weights =
      weight_memory.view(0, Shape{rank.layout.weight_elements}, c.numerics.dtype);
  optim::GradientReducer reducer(context, data, plan.lanes, rank.buckets, rank.reducer_sizes);

  StepTrace result;
  const std::int64_t lanes = plan.microbatches / plan.microbatches_per_lane;
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const std::int64_t m = (lane + 1) * plan.microbatches_per_lane - 1;
    const bool last = lane + 1 == lanes;
    const nn::StageSpec* chunk = nullptr;
    for_layers_backward(rank, [&](const grid::Range& layers, std::int64_t layer) {
      if (chunk == nullptr || chunk->layers != layers) {
        chunk = &*std::ranges::find(rank.chunks, layers, &nn::StageSpec::layers);
        static_cast<void>(reducer.begin_microbatch(m, layers));
      }
      reducer.layer_done(m, layer);
      if (last) {
        result.reduction.push_back({layer, trace.take()});
      }
    });
    if (!last) {
      std::ranges::move(trace.take(), std::back_inserter(result.own_lanes));
    }
  }
  reducer.finish();
  result.finish = trace.take();

  std::optional<optim::TiedExchange> tie;
  std::optional<comm::PlannedGroup> pipeline;
  if (const auto stages = tied_stages(plan)) {
    pipeline.emplace(trace, group_site(plan, at, grid::Axis::kPipeline, node_ranks));
    tie.emplace(context, *pipeline, rank.layout, rank.buckets, at.data, *stages, c.numerics.dtype);
    static_cast<void>(tie->combine(reducer.sums()));
  }
  result.tied = trace.take();

  optim::GradientNorm norm(context, rank.owned());
  norm.begin(reducer.sums());
  result.norm = trace.take();

  const optim::OwnedTensors owned(context.device(), rank.owned(), rank_states(plan),
                                  compute_dtype(c.numerics.dtype), weights);
  optim::UpdateRule rule(context, c.optimizer.options, rank.layout, owned, weights);
  const bool updates = replication_of(plan).traits(plan).ranks_update;
  static_cast<void>(trace.take());
  optim::WeightGather gather(data, rank.layout, rank.buckets, weights, plan.node_replicas);
  const std::vector<optim::Bucket>& buckets = rank.buckets.buckets();
  const auto borrowed = [&](std::size_t b) {
    return buckets[b].use == optim::Bucket::Use::kBorrowed;
  };
  for (std::size_t b = buckets.size(); b-- > 0;) {
    if (!borrowed(b)) {
      if (updates) {
        rule.update(b, reducer.sums(), c.schedule.peak, 1.0, 1);
      }
      gather.begin(b);
    }
  }
  if (tie) {
    static_cast<void>(tie->return_weights(weights));
  }
  for (std::size_t b = buckets.size(); b-- > 0;) {
    if (borrowed(b)) {
      gather.begin(b);
    }
  }
  result.update = trace.take();
  for (const nn::StageSpec& chunk : rank.chunks) {
    for (std::int64_t layer = chunk.layers.begin; layer < chunk.layers.end; ++layer) {
      static_cast<void>(gather.await(layer));
      result.gather.push_back({layer, trace.take()});
    }
  }
  return result;
}

}  // namespace strata::plan
