#include "strata/plan/plan.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/nn/convnet.hpp"
#include "strata/plan/replication.hpp"

#include "resolve.hpp"
#include "training_schedule.hpp"

namespace strata::plan {

std::vector<std::string> layer_lines(const config::RunConfig& config, const io::DatasetInfo& data) {
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

std::int64_t context_of(const config::RunConfig& config) {
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

io::DatasetInfo assumed_data(const config::RunConfig& config) {
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
  const config::RunConfig& c = plan.config;
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
      .step_microbatches = part_batch(plan) / c.batch.micro,
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

std::int64_t node_replicas(const config::RunConfig& config, const grid::Grid& grid,
                           std::int64_t node_ranks) {
  const std::int64_t replicas = node_ranks / grid.tensor;
  const bool fits = node_ranks % grid.tensor == 0 && replicas > 0 && replicas < grid.data &&
                    grid.data % replicas == 0;
  return fits && config.numerics.mode == comm::Summation::kInvariant ? replicas : 1;
}

void set_node_ranks(Plan& plan, std::int64_t node_ranks) {
  if (plan.config.parallel.node_ranks == 0) {
    plan.node_replicas = node_replicas(plan.config, plan.grid, node_ranks);
  }
}

namespace {

std::int64_t resolve_node_replicas(const config::RunConfig& given, const grid::Grid& grid) {
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

/// With parallel.sequence decided. Pre: parallel.pipeline and parallel.tensor are set.
Plan prepare_rows(const config::RunConfig& given, nn::Placement token_rows, std::int64_t ranks,
                  const io::DatasetInfo& train_data, const VirtualGrid& stored,
                  device::DeviceKind device, ProvenSchedules* proven) {
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
  const ReplicationPlan& replication = replication_of(plan);
  replication.divide(plan);
  plan.lanes = grid::SumTree(plan.config.numerics.lanes / plan.parts);
  const std::int64_t step_microbatches = part_batch(plan) / plan.config.batch.micro;
  plan.microbatches_per_lane = step_microbatches / plan.lanes.leaves();
  plan.microbatches = step_microbatches / plan.grid.data;
  plan.model = make_model(plan, token_rows);
  apply_parameter_settings(plan.config, *plan.model);
  plan.fragments = replication.fragments(plan);
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
  replication.check(plan);
  if (plan.model->joins_lanes()) {
    plan.concurrent_lanes = plan.lanes.leaves() / plan.grid.data;
  }
  const std::int64_t microbatches = plan.microbatches / plan.concurrent_lanes;
  TrainingSchedule training =
      training_schedule(plan.config, *plan.model, plan.grid.pipeline, microbatches, device, proven);
  plan.training = std::move(training.schedule);
  plan.made_for = std::move(training.made_for);
  plan.backward = backward_order(plan.config, plan.training);
  if (given.run.device == config::DeviceChoice::kEmulated) {
    plan.emulated = emulated_costs(given, plan.training);
    plan.config.checkpoint.minutes = 0.0;
  }
  plan.evaluation =
      evaluation_schedule(plan.training.order, plan.grid.pipeline, microbatches, device, proven);
  plan.split =
      nn::split_model(*plan.model, std::ssize(plan.training.order.chunks()), given.parallel.split);
  check_stages(plan);
  return plan;
}

}  // namespace

Plan prepare(const config::RunConfig& given, std::int64_t ranks, const io::DatasetInfo& train_data,
             const VirtualGrid& stored, device::DeviceKind device, ProvenSchedules* proven) {
  if (given.parallel.pipeline == 0 || given.parallel.tensor == 0) {
    return prepare(with_grid(given, ranks, train_data, stored), ranks, train_data, stored, device,
                   proven);
  }
  const auto with = [&](nn::Placement token_rows) {
    return prepare_rows(given, token_rows, ranks, train_data, stored, device, proven);
  };
  // The library's sums of numerics.mode = fast send whole rows either way.
  const bool worth_it = given.parallel.tensor > 1 && train_data.task == io::Task::kNextToken &&
                        given.numerics.mode == comm::Summation::kInvariant;
  if (given.parallel.sequence == config::Sequence::kAuto && worth_it) {
    try {
      return with(nn::Placement::kTokens);
    } catch (const Error&) {
      // Rows that cannot be shared; any other error comes again.
    }
  }
  return with(given.parallel.sequence == config::Sequence::kOn ? nn::Placement::kTokens
                                                               : nn::Placement::kReplicated);
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
