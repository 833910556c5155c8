#include <algorithm>
#include <iterator>

#include "strata/optim/gradient_norm.hpp"
#include "strata/optim/tied_exchange.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/plan/plan.hpp"
#include "strata/plan/replication.hpp"
#include "strata/plan/step_trace.hpp"

#include "resolve.hpp"

// One rank's part of a plan, and its memory.
namespace strata::plan {

namespace {

/// The chunks of a stage.
std::vector<nn::StageSpec> chunk_specs(const Plan& plan, const grid::Coordinates& coordinates) {
  std::vector<nn::StageSpec> specs;
  const std::vector<pipeline::StageChunk>& positions = plan.training.order.chunks();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i].stage == coordinates.pipeline) {
      specs.push_back({.layers = plan.split.stages[i],
                       .pass = pass_shape(plan, coordinates.tensor),
                       .slots = pipeline::slots_for(plan.training, positions[i]),
                       .order = plan.backward});
    }
  }
  return specs;
}

/// What the chunks of a rank read of samples.
io::Parts loaded_parts(const nn::Model& model, std::span<const nn::StageSpec> chunks) {
  io::Parts parts = io::Parts::kNone;
  const auto add = [&](bool wanted, io::Parts part) { parts = wanted ? parts | part : parts; };
  for (const nn::StageSpec& chunk : chunks) {
    add(chunk.layers.begin == 0, io::Parts::kInputs);
    const bool is_last = chunk.layers.end == model.layer_count();
    const bool compares = is_last && model.loss_options().compares_documents();
    add(is_last, io::Parts::kTargets);
    add(compares, io::Parts::kReferences);
    add(compares || model.reads_document_starts(chunk.layers), io::Parts::kDocumentStarts);
    add(model.reads_positions(chunk.layers), io::Parts::kPositions);
  }
  return parts;
}

constexpr const char* kCheckpointCopy = "checkpoint's copy";

/// The memory of samples; bytes_of(options): of one loader.
template <typename Function>
std::vector<nn::MemoryItem> samples_memory(const Plan& plan, const RankPlan& rank,
                                           const Function& bytes_of) {
  const bool evaluates = rank.loads && !plan.config.data.test.empty();
  // On one replica a repeated step has the samples of the first run.
  const bool repeats = rank.loads && repeats_steps(plan) && plan.grid.data > 1;
  std::int64_t training = 0;
  for (const io::LoaderOptions& loader : replication_of(plan).loaders(plan, rank)) {
    training += rank.loads ? bytes_of(loader) : 0;
  }
  return {{"samples, training", training},
          {"samples, evaluation", evaluates ? bytes_of(evaluation_loader(plan, rank, 1)) : 0},
          {"samples, repeated step", repeats ? bytes_of(repeat_loader(plan, rank, 1)) : 0}};
}

/// The master copies of frozen weights, which lie in host memory: no step reads them.
std::vector<nn::MemoryItem> frozen_masters(const Plan& plan, const RankPlan& rank) {
  const DType dtype = plan.config.numerics.dtype;
  if (rank.frozen.elements == 0 || dtype == compute_dtype(dtype)) {
    return {};
  }
  return {{"master weights, frozen",
           rank.owned_frozen().elements() * size_bytes(compute_dtype(dtype))}};
}

/// Bytes that operations need on a GPU besides their tensors, of those that need most.
struct LibraryScratch {
  std::int64_t attention = 0;
  std::int64_t products = 0;
};

LibraryScratch library_scratch(const Plan& plan, const RankPlan& rank) {
  LibraryScratch most;
  for (const PassTrace& pass : trace_passes(plan, rank, plan.node_replicas * plan.grid.tensor)) {
    for (const auto* events :
         {&pass.trace.forward, &pass.trace.backward_input, &pass.trace.backward_weight}) {
      for (const comm::TraceEvent& event : *events) {
        std::int64_t& bytes =
            event.work.name.starts_with("attention") ? most.attention : most.products;
        bytes = std::max(bytes, event.work.scratch);
      }
    }
  }
  return most;
}

/// All allocations of the rank on its device.
std::vector<nn::MemoryItem> memory_of(const Plan& plan, const RankPlan& rank) {
  const config::RunConfig& c = plan.config;
  std::vector<nn::MemoryItem> memory{
      {"weights",
       (rank.layout.weight_elements + rank.frozen.weight_elements) * size_bytes(c.numerics.dtype)}};
  const auto add = [&](std::vector<nn::MemoryItem> items) {
    std::move(items.begin(), items.end(), std::back_inserter(memory));
  };
  add(optim::GradientReducer::memory(plan.lanes, rank.coordinates.data, rank.buckets,
                                     rank.reducer_sizes));
  add(optim::OwnedTensors::memory(rank.owned(), rank_states(plan), c.numerics.dtype));
  if (plan.device == device::DeviceKind::kCpu) {
    add(frozen_masters(plan, rank));
    add(replication_of(plan).memory(plan, rank));
  }
  if (const auto tie = tied_stages(plan)) {
    add({optim::TiedExchange::memory(rank.buckets, rank.coordinates.pipeline, *tie,
                                     c.numerics.dtype)});
  }
  add(nn::Stage::memory(*plan.model, rank.chunks));
  add({optim::GradientNorm::memory(rank.owned())});
  const std::vector<nn::MemoryItem> samples =
      samples_memory(plan, rank, [&](const io::LoaderOptions& options) {
        return plan.device == device::DeviceKind::kCpu
                   ? io::Loader::memory_bytes(plan.train_data, options)
                   : device_sample_bytes(plan.device, plan.train_data, options);
      });
  memory.insert(memory.end(), samples.begin(), samples.end());
  if (plan.device == device::DeviceKind::kCpu) {
    memory.push_back({kCheckpointCopy, checkpoint_copy_bytes(plan, rank)});
  } else {
    memory.push_back({"cuBLASLt's workspace", ops::Context::kCudaBytes});
    const auto [attention, products] = library_scratch(plan, rank);
    if (products > 0) {
      memory.push_back({"padded copy of the head's weights", products});
    }
    if (c.numerics.attention == ops::LibraryKernels::kLibrary && attention > 0) {
      memory.push_back({"cuDNN's attention, at most", attention});
    }
  }
  return memory;
}

/// All allocations in host memory of a rank with a GPU.
std::vector<nn::MemoryItem> host_memory_of(const Plan& plan, const RankPlan& rank) {
  if (plan.device == device::DeviceKind::kCpu) {
    return {};
  }
  std::vector<nn::MemoryItem> memory = frozen_masters(plan, rank);
  const std::vector<nn::MemoryItem> replication = replication_of(plan).memory(plan, rank);
  memory.insert(memory.end(), replication.begin(), replication.end());
  const std::vector<nn::MemoryItem> samples =
      samples_memory(plan, rank, [&](const io::LoaderOptions& options) {
        return io::Loader::memory_bytes(plan.train_data, options) +
               pinned_sample_bytes(plan.device, plan.train_data, options);
      });
  memory.insert(memory.end(), samples.begin(), samples.end());
  memory.push_back({kCheckpointCopy, checkpoint_copy_bytes(plan, rank)});
  return memory;
}

}  // namespace

std::vector<std::int64_t> chunk_stages(const Plan& plan) {
  std::vector<std::int64_t> stages;
  std::ranges::transform(plan.training.order.chunks(), std::back_inserter(stages),
                         &pipeline::StageChunk::stage);
  return stages;
}

std::optional<optim::TiedExchange::Stages> tied_stages(const Plan& plan) {
  const std::vector<nn::ParameterSpec>& parameters = plan.model->parameters();
  const auto borrowed = std::find_if(
      parameters.rbegin(), parameters.rend(),
      [](const nn::ParameterSpec& spec) { return spec.ownership == nn::Ownership::kBorrowed; });
  if (borrowed == parameters.rend() || !nn::has_gradient(*borrowed)) {
    return std::nullopt;
  }
  const auto owner =
      std::find_if(parameters.begin(), parameters.end(), [&](const nn::ParameterSpec& spec) {
        return spec.name == borrowed->name && spec.ownership == nn::Ownership::kOwned;
      });
  const auto stage_of = [&, stages = chunk_stages(plan)](std::int64_t layer) {
    return stages[static_cast<std::size_t>(plan.split.stage_of(layer))];
  };
  return optim::TiedExchange::Stages{.owner = stage_of(owner->layer),
                                     .borrower = stage_of(borrowed->layer)};
}

std::int64_t checkpoint_copy_bytes(const Plan& plan, const RankPlan& rank) {
  const config::RunConfig& c = plan.config;
  const optim::Ownership owned = rank.owned();
  const std::int64_t states =
      optim::UpdateRule::states(c.optimizer.options) * owned.state_elements();
  // Frozen masters in host memory do not change while they are written.
  const bool on_host = plan.device == device::DeviceKind::kCpu ||
                       c.numerics.dtype != compute_dtype(c.numerics.dtype);
  const std::int64_t frozen = on_host ? 0 : rank.owned_frozen().elements();
  return (replication_of(plan).copied_elements(plan, owned.elements(), states) + frozen) *
         size_bytes(compute_dtype(c.numerics.dtype));
}

RankPlan rank_plan(const Plan& plan, std::int64_t rank) {
  const config::RunConfig& c = plan.config;
  const grid::Coordinates coordinates = plan.grid.coordinates_of(rank);
  std::vector<nn::StageSpec> chunks = chunk_specs(plan, coordinates);
  std::vector<grid::Range> layers;
  std::ranges::transform(chunks, std::back_inserter(layers), &nn::StageSpec::layers);
  const nn::Shards& shards = chunks.front().pass.shards;
  nn::ParameterLayout layout = nn::layout_of(plan.model->parameters(), layers, shards);
  nn::ParameterLayout frozen =
      nn::layout_of(plan.model->parameters(), layers, shards, nn::Placed::kWithoutGradients);
  const auto bucket_elements = std::max<std::int64_t>(
      nn::ParameterLayout::kBlock, static_cast<std::int64_t>(c.parallel.bucket_mib * 1048576.0) /
                                       size_bytes(compute_dtype(c.numerics.dtype)));
  // Messages between GPUs are fast where they are large.
  constexpr std::int64_t kMostOnGpus = std::int64_t{1} << 28;
  const bool on_gpu = plan.device == device::DeviceKind::kCuda;
  optim::BucketPlan buckets(layout, plan.grid.data, bucket_elements,
                            std::max(bucket_elements, on_gpu ? kMostOnGpus : 0));
  optim::BucketPlan frozen_buckets(frozen, plan.grid.data, bucket_elements);
  const io::Parts parts = loaded_parts(*plan.model, chunks);
  RankPlan result{.coordinates = coordinates,
                  .own_parts = replication_of(plan).parts_of(plan, coordinates),
                  .chunks = std::move(chunks),
                  .layout = std::move(layout),
                  .buckets = std::move(buckets),
                  .frozen = std::move(frozen),
                  .frozen_buckets = std::move(frozen_buckets),
                  .loaded_parts = parts,
                  .loads = parts != io::Parts::kNone};
  result.reducer_sizes = {.elements = result.layout.elements,
                          .microbatches_per_lane = plan.microbatches_per_lane,
                          .dtype = c.numerics.dtype,
                          .summation = c.numerics.mode,
                          .joins_lanes = plan.model->joins_lanes(),
                          .reach = repeats_steps(plan) ? optim::GradientReducer::Reach::kAnyLanes
                                                       : optim::GradientReducer::Reach::kOwnLanes,
                          .in_flight = on_gpu ? 1 : 4,
                          .node_ranks = plan.node_replicas};
  result.server_buckets = replication_of(plan).server_buckets(plan, result.layout, bucket_elements);
  for (std::int64_t part = result.own_parts.begin; part < result.own_parts.end; ++part) {
    for (std::int64_t round = 0; round < plan.lanes.rounds(); ++round) {
      const std::int64_t lane =
          part * plan.lanes.tree().leaves() + plan.lanes.leaf(coordinates.data, round);
      for (std::int64_t m = 0; m < plan.microbatches_per_lane; ++m) {
        result.offsets.push_back((lane * plan.microbatches_per_lane + m) * c.batch.micro);
      }
    }
  }
  result.memory = memory_of(plan, result);
  result.host_memory = host_memory_of(plan, result);
  return result;
}

}  // namespace strata::plan
