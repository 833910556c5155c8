#include "strata/plan/plan.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/nn/convnet.hpp"
#include "strata/optim/gradient_norm.hpp"
#include "strata/optim/tied_exchange.hpp"
#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/executor.hpp"

#include "resolve.hpp"
#include "training_schedule.hpp"

namespace strata::plan {

std::vector<std::string> layer_lines(const RunConfig& config, const io::DatasetInfo& data) {
  const nn::Preset preset = config.model.transformer.preset;
  if (!config.model.layers.empty() && preset != nn::Preset::kNone) {
    fail(ExitCode::kUsage,
         "model.preset is {} and there are {} model.layer lines; keep one of the two",
         name_of(preset), config.model.layers.size());
  }
  nn::TransformerOptions dimensions = config.model.transformer;
  dimensions.context = 0;
  dimensions.vocabulary = 0;
  dimensions.preset = nn::Preset::kNone;
  if (!nn::is_transformer(preset) && dimensions != nn::TransformerOptions{}) {
    fail(ExitCode::kUsage,
         "model.preset is {}, but sizes of a transformer are set (model.blocks, width, heads and "
         "so on), which only a transformer takes; set model.preset to gpt or llama, or leave them "
         "out",
         name_of(preset));
  }
  if (nn::is_convnet(preset)) {
    if (data.task != io::Task::kClassification || data.input_shape.rank() != 3) {
      fail(ExitCode::kUsage,
           "model.preset is {}, an image classifier, but {} has samples of {}; "
           "import images with \"strata data import --format=images\", cifar10 or idx",
           name_of(preset), data.path.string(), data.input_shape.text());
    }
    return nn::adapted_layers(nn::convnet_layers(preset, data.classes), config.lora.adapters);
  }
  return nn::adapted_layers(nn::is_transformer(preset)
                                ? nn::transformer_layers(nn::resolved(config.model.transformer))
                                : config.model.layers,
                            config.lora.adapters);
}

std::int64_t context_of(const RunConfig& config) {
  if (nn::is_transformer(config.model.transformer.preset)) {
    return nn::resolved(config.model.transformer).context;
  }
  if (config.model.transformer.context == 0) {
    fail(ExitCode::kUsage,
         "the data set holds tokens, but model.context is 0; set it to the tokens of a sample, "
         "such as 64");
  }
  return config.model.transformer.context;
}

io::DatasetInfo assumed_data(const RunConfig& config) {
  const nn::Preset preset = config.model.transformer.preset;
  if (nn::is_convnet(preset)) {
    const nn::PublishedImages images = nn::published_images(preset);
    return {.path = "(no data set)", .input_shape = images.shape, .classes = images.classes};
  }
  const bool named = preset != nn::Preset::kNone;
  const std::int64_t vocabulary = named ? nn::resolved(config.model.transformer).vocabulary
                                        : config.model.transformer.vocabulary;
  if (vocabulary == 0) {
    fail(ExitCode::kUsage,
         "data.train is empty; make a data set with \"strata data import\" and name its train.h5, "
         "or, to plan a language model without data, set model.vocabulary, or a preset");
  }
  const std::int64_t context = context_of(config);
  return {.path = "(no data set)",
          .task = io::Task::kNextToken,
          .samples = 0,
          .input_shape = {context},
          .input_dtype = DType::kInt64,
          .target_shape = {context},
          .classes = vocabulary};
}

io::LoaderOptions training_loader(const Plan& plan, const RankPlan& rank, std::int64_t first_step) {
  return {.order = io::Order::kShuffled,
          .sampling = plan.config.data.sampling,
          .seed = plan.config.run.seed,
          .global_batch = plan.config.batch.global,
          .microbatch = plan.config.batch.micro,
          .offsets = rank.offsets,
          .first_step = first_step,
          .steps = plan.total_steps - first_step,
          .compute_dtype = plan.config.numerics.dtype,
          .parts = rank.parts,
          .normalise = plan.config.data.normalise,
          .augmentation = plan.config.data.augmentation,
          .reader_threads = plan.config.data.reader_threads};
}

io::LoaderOptions repeat_loader(const Plan& plan, const RankPlan& rank, std::int64_t step) {
  io::LoaderOptions options = training_loader(plan, rank, step - 1);
  options.steps = 1;
  return options;
}

std::int64_t async_control_words(const Plan& plan, std::int64_t rank) {
  constexpr std::int64_t kShared = 2;  // the claims and the cuts
  constexpr std::int64_t kOfRank = 2;  // what it asks for, and the units that it has done
  return rank == 0 ? kShared + kOfRank * plan.grid.ranks() + kUnitRing * kUnitRingWords : 1;
}

std::vector<std::int64_t> unit_offsets(const Plan& plan, std::int64_t unit) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t m = 0; m < plan.microbatches; ++m) {
    offsets.push_back((unit % plan.islands * plan.microbatches + m) * plan.config.batch.micro);
  }
  return offsets;
}

io::LoaderOptions unit_loader(const Plan& plan, const RankPlan& rank, std::int64_t unit) {
  io::LoaderOptions options = training_loader(plan, rank, unit / plan.islands);
  options.offsets = unit_offsets(plan, unit);
  options.steps = 1;
  return options;
}

io::LoaderOptions evaluation_loader(const Plan& plan, const RankPlan& rank, std::int64_t rounds) {
  io::LoaderOptions options = training_loader(plan, rank, 0);
  options.order = io::Order::kSequential;
  options.global_batch = job_batch(plan);
  for (std::int64_t& offset : options.offsets) {
    offset -= first_of_job(plan);
  }
  options.augmentation = {};
  options.steps = rounds;
  return options;
}

std::int64_t device_sample_bytes(device::DeviceKind device, const io::DatasetInfo& info,
                                 const io::LoaderOptions& options) {
  // One buffer that a step reads, one that receives the next step's samples.
  return 2 * pinned_sample_bytes(device, info, options);
}

std::int64_t pinned_sample_bytes(device::DeviceKind device, const io::DatasetInfo& info,
                                 const io::LoaderOptions& options) {
  return device == device::DeviceKind::kCpu ? 0 : io::Loader::step_bytes(info, options);
}

namespace {

std::unique_ptr<nn::Model> make_model(const Plan& plan, nn::Placement token_rows) {
  const RunConfig& c = plan.config;
  const io::DatasetInfo& data = plan.train_data;
  const nn::TransformerOptions& named = c.model.transformer;
  if (nn::is_transformer(named.preset) && named.vocabulary != 0 &&
      named.vocabulary < data.classes) {
    fail(ExitCode::kUsage,
         "model.preset is {} with model.vocabulary = {}, but the data set has {} token ids; set "
         "model.vocabulary to at least {}",
         name_of(named.preset), named.vocabulary, data.classes, data.classes);
  }
  const nn::ModelOptions options{
      .layers = layer_lines(c, data),
      .loss = resolve_loss(c, data),
      .input_shape = data.input_shape,
      .outputs = data.task == io::Task::kRegression ? data.target_shape.count() : data.classes,
      .seed = c.run.seed,
      .step_microbatches = island_batch(plan) / c.batch.micro,
      .lanes = plan.lanes.leaves(),
      .sync_batch_norm = c.model.sync_batch_norm,
      .input_kind =
          data.task == io::Task::kNextToken ? nn::InputKind::kTokenIds : nn::InputKind::kNumbers,
      .shards = c.numerics.shards,
      .token_rows = token_rows};
  try {
    return std::make_unique<nn::Model>(options);
  } catch (const Error& error) {
    if (named.preset == nn::Preset::kNone) {
      throw;
    }
    if (nn::is_convnet(named.preset)) {
      fail(error.code(), "model.preset is {}, made for images of {}, and those of {} are {}; {}",
           name_of(named.preset), nn::published_images(named.preset).shape.text(),
           data.path.string(), data.input_shape.text(), error.what());
    }
    // The user did not write the line.
    fail(error.code(),
         "model.preset is {}, whose layers follow from model.width, model.heads, model.kv_heads "
         "and model.hidden; {}",
         name_of(named.preset), error.what());
  }
}

}  // namespace

std::int64_t node_replicas(const RunConfig& config, const grid::Grid& grid,
                           std::int64_t node_ranks) {
  const std::int64_t replicas = node_ranks / grid.tensor;
  const bool fits = node_ranks % grid.tensor == 0 && replicas > 0 && replicas < grid.data &&
                    grid.data % replicas == 0;
  return fits && config.numerics.mode == comm::Summation::kInvariant ? replicas : 1;
}

namespace {

std::int64_t resolve_node_replicas(const RunConfig& given, const grid::Grid& grid) {
  const std::int64_t node = given.parallel.node_ranks;
  if (node == 0) {
    return 1;
  }
  const std::int64_t replicas = node / grid.tensor;
  if ((node % grid.tensor != 0 && grid.tensor % node != 0) ||
      (replicas > 0 && replicas < grid.data && grid.data % replicas != 0)) {
    fail(
        ExitCode::kUsage,
        "parallel.node_ranks is {}, but each node must hold a whole number of the {} replicas of a "
        "stage, of {} rank{} each, and all nodes as many; give {} times a number that divides {}, "
        "or 0",
        node, grid.data, grid.tensor, grid.tensor == 1 ? "" : "s", grid.tensor, grid.data);
  }
  return node_replicas(given, grid, node);
}

/// The layers of each of `count` fragments, which have about as many parameters.
std::vector<grid::Range> fragments_of(const nn::Model& model, std::int64_t count) {
  std::vector<double> parameters(static_cast<std::size_t>(model.layer_count()));
  for (const nn::ParameterSpec& spec : model.parameters()) {
    if (spec.ownership == nn::Ownership::kOwned) {
      parameters[static_cast<std::size_t>(spec.layer)] += static_cast<double>(spec.shape.count());
    }
  }
  if (count > model.layer_count()) {
    fail(ExitCode::kUsage,
         "local.fragments is {}, but the model has {} layers, which are not divided; give at most "
         "{}",
         count, model.layer_count(), model.layer_count());
  }
  return grid::balanced_split(parameters, count).stages;
}

/// With parallel.sequence decided. Pre: parallel.pipeline and parallel.tensor are set.
Plan prepare_rows(const RunConfig& given, nn::Placement token_rows, std::int64_t ranks,
                  const io::DatasetInfo& train_data, const VirtualGrid& stored,
                  device::DeviceKind device) {
  check_optimizer(given.optimizer.options);
  check_augmentation(given.data.augmentation, train_data);
  Plan plan;
  plan.device = device;
  plan.train_data = train_data;
  plan.token_rows = token_rows;
  plan.grid = resolve_grid(given, ranks, stored.lanes);
  plan.total_steps = resolve_steps(given, train_data.samples);
  if (given.run.timeline && given.run.timeline->last > plan.total_steps) {
    fail(ExitCode::kUsage,
         "run.timeline = {}-{}, but the run has {} steps; give steps from 1 to {}",
         given.run.timeline->first, given.run.timeline->last, plan.total_steps, plan.total_steps);
  }
  plan.config = resolve_config(given, plan.grid, train_data, stored, plan.total_steps, device);
  plan.node_replicas = resolve_node_replicas(given, plan.grid);
  plan.default_microbatch = given.batch.micro == 0 && stored.microbatch == 0;
  plan.islands = is_local(plan)   ? plan.config.parallel.islands
                 : is_async(plan) ? plan.config.numerics.lanes
                                  : 1;
  plan.own_islands = given.parallel.island_of.empty() ? plan.islands / plan.grid.islands : 1;
  plan.lanes = grid::SumTree(plan.config.numerics.lanes / plan.islands);
  const std::int64_t step_microbatches = island_batch(plan) / plan.config.batch.micro;
  plan.microbatches_per_lane = step_microbatches / plan.lanes.leaves();
  plan.microbatches = step_microbatches / plan.grid.data;
  plan.model = make_model(plan, token_rows);
  apply_parameter_settings(plan.config, *plan.model);
  if (is_local(plan)) {
    plan.fragments = fragments_of(*plan.model, plan.config.local.fragments);
  }
  check_unused(given, plan);
  plan.default_loss_pieces = given.numerics.loss_pieces == 0 && stored.loss_pieces == 0;
  plan.config.numerics.loss_pieces = resolve_loss_pieces(plan, stored, [&] {
    // With replicated rows, so that the choice does not depend on the grid.
    return make_model(plan, nn::Placement::kReplicated);
  });
  if (given.run.tensorboard_text > 0 && plan.config.numerics.loss_pieces > 1) {
    fail(ExitCode::kUsage,
         "run.tensorboard_text is {}, but with numerics.loss_pieces = {} the head keeps no logits; "
         "leave it out, or set numerics.loss_pieces to 1 in a new run",
         given.run.tensorboard_text, plan.config.numerics.loss_pieces);
  }
  if (plan.model->loss() == nn::LossKind::kCrossEntropy) {
    plan.targets_per_sample = nn::rows_at(plan.model->output(), 1);
  }
  if (plan.model->joins_lanes() && is_async(plan)) {
    fail(ExitCode::kUsage,
         "parallel.sync is async, but a batch_norm layer takes statistics over all lanes together; "
         "set model.sync_batch_norm to off");
  }
  if (plan.model->joins_lanes()) {
    plan.concurrent_lanes = plan.lanes.leaves() / plan.grid.data;
  }
  const std::int64_t microbatches = plan.microbatches / plan.concurrent_lanes;
  TrainingSchedule training =
      training_schedule(plan.config, *plan.model, plan.grid.pipeline, microbatches, device);
  plan.training = std::move(training.schedule);
  plan.made_for = std::move(training.made_for);
  plan.backward = backward_order(plan.config, plan.training);
  if (given.run.device == DeviceChoice::kEmulated) {
    plan.emulated = emulated_costs(given, plan.training);
    plan.config.checkpoint.minutes = 0.0;
  }
  plan.evaluation =
      evaluation_schedule(plan.training.order, plan.grid.pipeline, microbatches, device);
  plan.split =
      nn::split_model(*plan.model, std::ssize(plan.training.order.chunks()), given.parallel.split);
  check_stages(plan);
  return plan;
}

}  // namespace

Plan prepare(const RunConfig& given, std::int64_t ranks, const io::DatasetInfo& train_data,
             const VirtualGrid& stored, device::DeviceKind device) {
  if (given.parallel.pipeline == 0 || given.parallel.tensor == 0) {
    return prepare(with_grid(given, ranks, train_data, stored), ranks, train_data, stored, device);
  }
  const auto with = [&](nn::Placement token_rows) {
    return prepare_rows(given, token_rows, ranks, train_data, stored, device);
  };
  // The library's sums of numerics.mode = fast send whole rows either way.
  const bool worth_it = given.parallel.tensor > 1 && train_data.task == io::Task::kNextToken &&
                        given.numerics.mode == comm::Summation::kInvariant;
  if (given.parallel.sequence == Sequence::kAuto && worth_it) {
    try {
      return with(nn::Placement::kTokens);
    } catch (const Error&) {
      // Rows that cannot be shared; any other error comes again.
    }
  }
  return with(given.parallel.sequence == Sequence::kOn ? nn::Placement::kTokens
                                                       : nn::Placement::kReplicated);
}

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

constexpr const char* kCheckpointCopy = "checkpoint's copy";

/// The memory of samples; bytes_of(options) is that of one loader.
template <typename Function>
std::vector<nn::MemoryItem> samples_memory(const Plan& plan, const RankPlan& rank,
                                           const Function& bytes_of) {
  const bool evaluates = rank.loads && !plan.config.data.test.empty();
  // On one replica a repeated step has the samples of the first run.
  const bool repeats = rank.loads && repeats_steps(plan) && plan.grid.data > 1;
  // An asynchronous worker reads the next unit while it computes one.
  const std::int64_t training = !rank.loads      ? 0
                                : is_async(plan) ? 2 * bytes_of(unit_loader(plan, rank, 0))
                                                 : bytes_of(training_loader(plan, rank, 0));
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
  return {{"master weights, frozen", optim::Optimizer::memory({}, rank.frozen, rank.frozen_buckets,
                                                              rank.coordinates.data, dtype)
                                         .back()
                                         .bytes}};
}

/// What islands need beside the one in use, in host memory.
std::vector<nn::MemoryItem> islands_memory(const Plan& plan, const RankPlan& rank) {
  if (!is_local(plan)) {
    return {};
  }
  const RunConfig& c = plan.config;
  std::vector<nn::MemoryItem> memory = optim::OuterOptimizer::memory(
      plan.grid.islands, outer_options(plan), island_share(plan, rank), rank.layout, rank.buckets,
      rank.coordinates.data, plan.fragments, compute_dtype(c.numerics.dtype));
  memory.push_back({"islands not in use", plan.own_islands * island_slot_bytes(plan, rank)});
  return memory;
}

/// The share of the parameters and the messages of asynchronous training, in host memory.
std::vector<nn::MemoryItem> server_memory(const Plan& plan, const RankPlan& rank) {
  if (!is_async(plan)) {
    return {};
  }
  std::vector<nn::MemoryItem> memory = optim::ParameterServer::memory(
      plan.config.optimizer.options, rank.layout, *rank.server_buckets, servers(plan),
      plan.grid.ranks(), rank.coordinates.islands, compute_dtype(plan.config.numerics.dtype));
  memory.push_back({"window of units", 8 * async_control_words(plan, rank.coordinates.islands)});
  return memory;
}

/// All allocations of the rank on its device.
std::vector<nn::MemoryItem> memory_of(const Plan& plan, const RankPlan& rank) {
  const RunConfig& c = plan.config;
  std::vector<nn::MemoryItem> memory{
      {"weights",
       (rank.layout.weight_elements + rank.frozen.weight_elements) * size_bytes(c.numerics.dtype)}};
  const auto add = [&](std::vector<nn::MemoryItem> items) {
    std::move(items.begin(), items.end(), std::back_inserter(memory));
  };
  add(optim::GradientReducer::memory(plan.lanes, plan.grid.data, rank.coordinates.data,
                                     rank.buckets, rank.reducer_sizes));
  add(optim::Optimizer::memory(rank_optimizer(plan), rank.layout, rank.buckets,
                               rank.coordinates.data, c.numerics.dtype));
  if (plan.device == device::DeviceKind::kCpu) {
    add(frozen_masters(plan, rank));
    add(islands_memory(plan, rank));
    add(server_memory(plan, rank));
  }
  if (const auto tie = tied_stages(plan)) {
    add({optim::TiedExchange::memory(rank.buckets, rank.coordinates.pipeline, *tie,
                                     c.numerics.dtype)});
  }
  add(nn::Stage::memory(*plan.model, rank.chunks));
  add({optim::GradientNorm::memory(rank.buckets, plan.grid.data)});
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
    std::int64_t gpu_scratch_bytes = 0;
    std::int64_t gpu_workspace_bytes = 0;
    for (const nn::StageSpec& chunk : rank.chunks) {
      for (std::int64_t i = chunk.layers.begin; i < chunk.layers.end; ++i) {
        const nn::Layer& layer = plan.model->layer(i);
        gpu_workspace_bytes = std::max(gpu_workspace_bytes, layer.gpu_workspace_bytes(chunk.pass));
        gpu_scratch_bytes = std::max(gpu_scratch_bytes, layer.gpu_scratch_bytes(chunk.pass));
      }
    }
    if (gpu_scratch_bytes > 0) {
      memory.push_back({"padded copy of the head's weights", gpu_scratch_bytes});
    }
    if (c.numerics.attention == ops::LibraryKernels::kLibrary && gpu_workspace_bytes > 0) {
      memory.push_back({"cuDNN's attention, at most", gpu_workspace_bytes});
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
  const std::vector<nn::MemoryItem> islands = islands_memory(plan, rank);
  memory.insert(memory.end(), islands.begin(), islands.end());
  const std::vector<nn::MemoryItem> server = server_memory(plan, rank);
  memory.insert(memory.end(), server.begin(), server.end());
  const std::vector<nn::MemoryItem> samples =
      samples_memory(plan, rank, [&](const io::LoaderOptions& options) {
        return io::Loader::memory_bytes(plan.train_data, options) +
               pinned_sample_bytes(plan.device, plan.train_data, options);
      });
  memory.insert(memory.end(), samples.begin(), samples.end());
  memory.push_back({kCheckpointCopy, checkpoint_copy_bytes(plan, rank)});
  return memory;
}

/// All messages that the rank sends in a training step, on average.
std::vector<Traffic> traffic_of(const Plan& plan, const RankPlan& rank) {
  const RunConfig& c = plan.config;
  const auto microbatches = static_cast<double>(plan.microbatches);
  const auto element = static_cast<double>(size_bytes(c.numerics.dtype));
  const auto gradient = static_cast<double>(size_bytes(compute_dtype(c.numerics.dtype)));
  Traffic neighbours{"activations and their gradients, between stages"};
  const auto add_crossing = [&](std::int64_t layer, const nn::PassShape& pass, bool forward) {
    for (const std::int64_t tensor : plan.model->boundary_tensors(layer)) {
      if (tensor == nn::kModelInput && !forward) {
        continue;  // the model's input has no gradient
      }
      const nn::Port& port = plan.model->port_of(tensor);
      neighbours.messages += microbatches;
      neighbours.bytes +=
          microbatches * element * static_cast<double>(nn::local_shape(port, pass).count());
    }
  };
  nn::LayerTraffic shards;
  nn::LayerTraffic lanes;
  for (std::size_t i = 0; i < rank.chunks.size(); ++i) {
    const nn::StageSpec& chunk = rank.chunks[i];
    const pipeline::StageChunk here{.stage = rank.coordinates.pipeline,
                                    .chunk = static_cast<std::int64_t>(i)};
    const auto crosses = [&](const std::optional<pipeline::StageChunk>& other) {
      return other && other->stage != here.stage;
    };
    if (crosses(pipeline::downstream(plan.training, here))) {
      add_crossing(chunk.layers.end, chunk.pass, true);
    }
    if (crosses(pipeline::upstream(plan.training, here))) {
      add_crossing(chunk.layers.begin, chunk.pass, false);
    }
    shards += nn::Stage::traffic(*plan.model, chunk);
    lanes += nn::Stage::lane_traffic(*plan.model, chunk, plan.grid.data);
  }
  const Traffic tensor{"tensor-parallel reductions", microbatches * shards.messages,
                       microbatches * shards.bytes};
  // An island gathers its weights again when a fragment is averaged.
  const double gathers = is_local(plan) ? 1.0 + static_cast<double>(c.local.fragments) /
                                                    static_cast<double>(c.local.steps)
                                        : 1.0;
  // Exchanges of partial sums, then gathers of weights: of slices inside nodes, and across them.
  const std::int64_t nodes = plan.grid.data / plan.node_replicas;
  const auto data = [&](const std::string& name, std::int64_t peers, std::int64_t slices,
                        std::int64_t replicas) {
    const std::int64_t added = plan.lanes.leaves() / plan.grid.data * replicas;
    const auto parts = static_cast<double>(std::ssize(plan.lanes.nodes_within({0, added})));
    const auto sent = static_cast<double>(peers * slices);
    return Traffic{name,
                   static_cast<double>(rank.buckets.buckets().size()) * sent * (parts + gathers),
                   sent / static_cast<double>(plan.grid.data) *
                       (static_cast<double>(rank.layout.elements) * gradient * parts +
                        static_cast<double>(rank.layout.weight_elements) * element * gathers)};
  };
  std::vector<Traffic> all{neighbours, tensor};
  if (plan.node_replicas == 1) {
    all.push_back(data("gradients and weights, between replicas", nodes - 1, 1, 1));
  } else {
    all.push_back(data("gradients and weights, inside a node", plan.node_replicas - 1, nodes, 1));
    all.push_back(data("gradients and weights, between nodes", nodes - 1, 1, plan.node_replicas));
  }
  if (plan.model->joins_lanes()) {
    const auto executions = static_cast<double>(plan.training.microbatches);
    all.push_back({"batch statistics, between replicas", executions * lanes.messages,
                   executions * lanes.bytes});
  }
  if (const auto tie = tied_stages(plan)) {
    const nn::LayerTraffic tied = optim::TiedExchange::traffic(
        rank.buckets, rank.coordinates.data, rank.coordinates.pipeline, *tie, c.numerics.dtype);
    const double times = rank.coordinates.pipeline == tie->owner ? gathers : 1.0;
    all.push_back(
        {"gradients or weights of a tied table", times * tied.messages, times * tied.bytes});
  }
  for (Traffic& traffic : all) {
    traffic.messages *= static_cast<double>(plan.own_islands);
    traffic.bytes *= static_cast<double>(plan.own_islands);
  }
  if (is_local(plan)) {
    const nn::LayerTraffic round = optim::OuterOptimizer::traffic(
        plan.grid.islands, rank.coordinates.islands, outer_options(plan), island_share(plan, rank),
        rank.layout, rank.buckets, rank.coordinates.data, plan.fragments,
        compute_dtype(c.numerics.dtype));
    const auto steps = static_cast<double>(c.local.steps);
    all.push_back(
        {"differences and averages, between islands", round.messages / steps, round.bytes / steps});
  }
  return all;
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
      parameters.begin(), parameters.end(),
      [](const nn::ParameterSpec& spec) { return spec.ownership == nn::Ownership::kBorrowed; });
  if (borrowed == parameters.end() || !nn::has_gradient(*borrowed)) {
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

optim::OptimizerOptions rank_optimizer(const Plan& plan) {
  return is_async(plan) ? optim::OptimizerOptions{} : plan.config.optimizer.options;
}

optim::OuterOptions outer_options(const Plan& plan) {
  const auto& local = plan.config.local;
  return {.rate = local.outer_rate, .momentum = local.outer_momentum, .exchange = local.exchange};
}

optim::IslandShare island_share(const Plan& plan, const RankPlan& rank) {
  return {.count = plan.islands, .own = {rank.first_island, rank.first_island + plan.own_islands}};
}

std::int64_t slot_bytes_of(std::int64_t tensor_bytes) {
  constexpr std::int64_t kAlignment = device::Buffer::kAlignmentBytes;
  return (tensor_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t island_slot_bytes(const Plan& plan, const RankPlan& rank) {
  if (plan.own_islands == 1 && !islands_differ(plan) && plan.config.parallel.island_of.empty()) {
    return 0;
  }
  const RunConfig& c = plan.config;
  const std::int64_t full = size_bytes(compute_dtype(c.numerics.dtype));
  const std::int64_t state =
      optim::state_elements(rank.layout, rank.buckets, rank.coordinates.data) * full;
  const bool masters = c.numerics.dtype != compute_dtype(c.numerics.dtype);
  return std::ssize(optim::Optimizer::state_names(c.optimizer.options)) * slot_bytes_of(state) +
         (masters ? slot_bytes_of(rank.buckets.owned_elements(rank.coordinates.data) * full) : 0) +
         slot_bytes_of(rank.layout.weight_elements * size_bytes(c.numerics.dtype));
}

std::int64_t checkpoint_copy_bytes(const Plan& plan, const RankPlan& rank) {
  const RunConfig& c = plan.config;
  const bool in_place =
      plan.device == device::DeviceKind::kCpu && !is_local(plan) && !is_async(plan) &&
      (c.checkpoint.background == Switch::kOff ||
       (c.checkpoint.every == 0 && c.checkpoint.keep_every == 0 && c.checkpoint.minutes == 0.0));
  if (in_place) {
    return 0;
  }
  const std::int64_t owned = rank.buckets.owned_elements(rank.coordinates.data);
  const auto states = std::ssize(optim::Optimizer::state_names(c.optimizer.options)) *
                      optim::state_elements(rank.layout, rank.buckets, rank.coordinates.data);
  const std::int64_t full = size_bytes(compute_dtype(c.numerics.dtype));
  // Frozen masters in host memory do not change while they are written.
  const bool on_host = plan.device == device::DeviceKind::kCpu ||
                       c.numerics.dtype != compute_dtype(c.numerics.dtype);
  const std::int64_t frozen =
      on_host ? 0 : rank.frozen_buckets.owned_elements(rank.coordinates.data);
  if (is_async(plan)) {
    return frozen * full;  // a server's memory is on the host and does not change meanwhile
  }
  if (!is_local(plan)) {
    // The master weights (the weights themselves in full precision) and the optimizer's state.
    return (owned + frozen + states) * full;
  }
  const std::int64_t errors = c.local.exchange != ops::Packing::kFull ? 1 : 0;
  const std::int64_t island = states + (errors + (islands_differ(plan) ? 1 : 0)) * owned;
  const std::int64_t outer = 1 + errors + (c.local.outer_momentum != 0.0 ? 1 : 0);
  return (plan.own_islands * island + outer * owned + frozen) * full;
}

RankPlan rank_plan(const Plan& plan, std::int64_t rank) {
  const RunConfig& c = plan.config;
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
  const bool on_gpu = plan.device == device::DeviceKind::kCuda;
  optim::BucketPlan buckets(
      layout, plan.grid.data, bucket_elements,
      on_gpu ? optim::BucketPlan::Division::kLayers : optim::BucketPlan::Division::kElements);
  optim::BucketPlan frozen_buckets(frozen, plan.grid.data, bucket_elements);
  const bool first = chunks.front().layers.begin == 0;
  const bool last = chunks.back().layers.end == plan.model->layer_count();
  RankPlan result{.coordinates = coordinates,
                  .first_island = c.parallel.island_of.empty()
                                      ? coordinates.islands * plan.own_islands
                                      : c.parallel.island,
                  .chunks = std::move(chunks),
                  .layout = std::move(layout),
                  .buckets = std::move(buckets),
                  .frozen = std::move(frozen),
                  .frozen_buckets = std::move(frozen_buckets),
                  .parts = first && last ? io::Parts::kBoth
                           : first       ? io::Parts::kInputs
                                         : io::Parts::kTargets,
                  .loads = first || last};
  result.reducer_sizes = {.elements = result.layout.elements,
                          .microbatches_per_lane = plan.microbatches_per_lane,
                          .dtype = c.numerics.dtype,
                          .summation = c.numerics.mode,
                          .joins_lanes = plan.model->joins_lanes(),
                          .reach = repeats_steps(plan) ? optim::GradientReducer::Reach::kAnyLanes
                                                       : optim::GradientReducer::Reach::kOwnLanes,
                          .in_flight = on_gpu ? 1 : 4,
                          .node_ranks = plan.node_replicas};
  if (is_async(plan)) {
    result.server_buckets.emplace(result.layout, servers(plan), bucket_elements);
  }
  for (std::int64_t i = 0; i < plan.own_islands; ++i) {
    const std::int64_t replica = (result.first_island + i) * plan.grid.data + coordinates.data;
    for (std::int64_t m = 0; m < plan.microbatches; ++m) {
      result.offsets.push_back((replica * plan.microbatches + m) * c.batch.micro);
    }
  }
  result.memory = memory_of(plan, result);
  result.host_memory = host_memory_of(plan, result);
  result.traffic = traffic_of(plan, result);
  return result;
}

std::vector<comm::PlanItem> plan_items(const Plan& plan, const std::string& config_text) {
  std::string schedule;
  for (const auto& actions : plan.training.stage_actions) {
    for (const pipeline::Action& action : actions) {
      schedule += pipeline::text_of(action) + ";";
    }
  }
  std::string buckets;
  for (std::int64_t rank = 0; rank < plan.grid.ranks();
       rank += plan.grid.replicas() * plan.grid.tensor) {
    buckets += rank_plan(plan, rank).buckets.text();
  }
  std::string split;
  for (const grid::Range& stage : plan.split.stages) {
    split += fmt::format("{}-{};", stage.begin, stage.end);
  }
  return {{"config", hash_of(config_text)},
          {"grid", hash_of(fmt::format("{} {} {}", plan.grid.text(), split, plan.node_replicas))},
          {"schedule", hash_of(schedule)},
          {"buckets", hash_of(buckets)},
          {"length", hash_of(fmt::format("{}", plan.total_steps))}};
}

}  // namespace strata::plan
