#include <span>
#include <utility>
#include <vector>

#include "strata/plan/plan.hpp"
#include "strata/plan/replication.hpp"
#include "strata/plan/step_trace.hpp"

// What a rank sends in a step: the messages that its own code starts on planned memory.
namespace strata::plan {
namespace {

/// Along an axis, of all layers of a rank, for one microbatch of each concurrent lane.
comm::TracedMessages pass_messages(std::span<const PassTrace> passes, grid::Axis axis) {
  comm::TracedMessages all;
  for (const auto& [trace, layers] : passes) {
    for (const auto* events : {&trace.forward, &trace.backward_input, &trace.backward_weight}) {
      const comm::TracedMessages once = comm::sent(*events, axis);
      for (std::int64_t i = 0; i < layers; ++i) {
        all += once;
      }
    }
  }
  return all;
}

/// The messages of a step besides those of its passes.
struct StepMessages {
  comm::TracedMessages reduction;
  comm::TracedMessages gather;
  comm::TracedMessages tied_gradients;
  comm::TracedMessages tied_weights;
};

StepMessages step_messages(const Plan& plan, const RankPlan& rank, std::int64_t node_ranks) {
  const StepTrace step = trace_step(plan, rank, node_ranks);
  StepMessages all{.gather = comm::sent(step.update, grid::Axis::kData),
                   .tied_gradients = comm::sent(step.tied, grid::Axis::kPipeline),
                   .tied_weights = comm::sent(step.update, grid::Axis::kPipeline)};
  all.reduction += comm::sent(step.finish, grid::Axis::kData);
  for (const StepTrace::AfterLayer& after : step.reduction) {
    all.reduction += comm::sent(after.events, grid::Axis::kData);
  }
  for (const StepTrace::AfterLayer& after : step.gather) {
    all.gather += comm::sent(after.events, grid::Axis::kData);
  }
  return all;
}

void add(Traffic& traffic, const comm::TracedMessages& messages, double times) {
  traffic.messages +=
      times * static_cast<double>(messages.messages + messages.messages_between_nodes);
  traffic.bytes += times * (messages.bytes + messages.bytes_between_nodes);
}

/// The activations and gradients that the rank's chunks send to other stages.
Traffic stage_traffic(const Plan& plan, const RankPlan& rank) {
  Traffic neighbours{"activations and their gradients, between stages"};
  const auto add_crossing = [&](std::int64_t layer, const nn::PassShape& pass, bool gradients) {
    const Traffic crossing = crossing_traffic(plan, layer, pass, gradients);
    neighbours.messages += static_cast<double>(plan.microbatches) * crossing.messages;
    neighbours.bytes += static_cast<double>(plan.microbatches) * crossing.bytes;
  };
  for (std::size_t i = 0; i < rank.chunks.size(); ++i) {
    const nn::StageSpec& chunk = rank.chunks[i];
    const pipeline::StageChunk here{.stage = rank.coordinates.pipeline,
                                    .chunk = static_cast<std::int64_t>(i)};
    const auto crosses = [&](const std::optional<pipeline::StageChunk>& other) {
      return other && other->stage != here.stage;
    };
    if (crosses(pipeline::downstream(plan.training, here))) {
      add_crossing(chunk.layers.end, chunk.pass, false);
    }
    if (crosses(pipeline::upstream(plan.training, here))) {
      add_crossing(chunk.layers.begin, chunk.pass, true);
    }
  }
  return neighbours;
}

}  // namespace

Traffic crossing_traffic(const Plan& plan, std::int64_t layer, const nn::PassShape& pass,
                         bool gradients) {
  Traffic crossing;
  for (const std::int64_t tensor : plan.model->boundary_tensors(layer)) {
    if (tensor == nn::kModelInput && gradients) {
      continue;  // the model's input has no gradient
    }
    const nn::Port& port = plan.model->port_of(tensor);
    crossing.messages += 1.0;
    crossing.bytes += static_cast<double>(nn::local_shape(port, pass).count() *
                                          size_bytes(plan.config.numerics.dtype));
  }
  return crossing;
}

std::vector<Traffic> traffic_of(const Plan& plan, const RankPlan& rank) {
  const std::int64_t node_ranks = plan.node_replicas * plan.grid.tensor;
  const auto executions = static_cast<double>(plan.training.microbatches);
  const double gathers = replication_of(plan).gathers(plan);
  const std::vector<PassTrace> passes = trace_passes(plan, rank, node_ranks);
  const StepMessages step = step_messages(plan, rank, node_ranks);

  std::vector<Traffic> all{stage_traffic(plan, rank)};
  all.push_back({"tensor-parallel reductions"});
  add(all.back(), pass_messages(passes, grid::Axis::kTensor), executions);
  if (plan.node_replicas == 1) {
    all.push_back({"gradients and weights, between replicas"});
    Traffic& between = all.back();
    add(between, step.reduction, 1.0);
    add(between, step.gather, gathers);
  } else {
    all.push_back({"gradients and weights, inside a node",
                   static_cast<double>(step.reduction.messages) +
                       gathers * static_cast<double>(step.gather.messages),
                   step.reduction.bytes + gathers * step.gather.bytes});
    all.push_back({"gradients and weights, between nodes",
                   static_cast<double>(step.reduction.messages_between_nodes) +
                       gathers * static_cast<double>(step.gather.messages_between_nodes),
                   step.reduction.bytes_between_nodes + gathers * step.gather.bytes_between_nodes});
  }
  if (plan.model->joins_lanes()) {
    all.push_back({"batch statistics, between replicas"});
    add(all.back(), pass_messages(passes, grid::Axis::kData), executions);
  }
  if (tied_stages(plan)) {
    all.push_back({"gradients or weights of a tied table"});
    Traffic& tied = all.back();
    add(tied, step.tied_gradients, 1.0);
    add(tied, step.tied_weights, gathers);
  }
  for (Traffic& traffic : all) {
    traffic.messages *= static_cast<double>(plan.parts_per_rank);
    traffic.bytes *= static_cast<double>(plan.parts_per_rank);
  }
  if (auto parts = replication_of(plan).traffic(plan, rank)) {
    all.push_back(*std::move(parts));
  }
  return all;
}

}  // namespace strata::plan
