#include "resolve.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/pipeline/stage_times.hpp"
#include "strata/plan/replication.hpp"

namespace strata::plan {

std::int64_t resolve_value(std::string_view key, std::int64_t configured, std::int64_t stored,
                           std::int64_t otherwise) {
  if (stored != 0 && configured != 0 && stored != configured) {
    fail(ExitCode::kUsage,
         "{} is {}, but the checkpoint that this run continues was made with {}; it determines the "
         "results, so leave it out or set it to {}",
         key, configured, stored, stored);
  }
  return configured != 0 ? configured : stored != 0 ? stored : otherwise;
}

namespace {

std::int64_t logit_multiple(device::DeviceKind device) {
  return device == device::DeviceKind::kCuda ? ops::kPaddedRow : 1;
}

/// `parts` describes what the batch is divided into; `divisor` must divide it.
void check_batch(std::int64_t value, const std::string& parts, std::int64_t divisor) {
  if (value % divisor == 0) {
    return;
  }
  const std::int64_t below = value / divisor * divisor;
  const std::string nearest =
      below > 0 ? fmt::format("{} or {}", below, below + divisor) : std::to_string(divisor);
  fail(ExitCode::kUsage, "batch.global is {}, not divisible by {}; the nearest valid values: {}",
       value, parts, nearest);
}

/// The largest divisor of a lane's samples that keeps matrix products efficient and leaves a
/// pipeline several microbatches. A GPU needs larger products than a core.
std::int64_t default_microbatch(std::int64_t lane_batch, const io::DatasetInfo& data,
                                device::DeviceKind device) {
  const bool gpu = device == device::DeviceKind::kCuda;
  const std::int64_t largest = gpu ? 64 : 32;
  const std::int64_t most_tokens = gpu ? 16384 : 4096;
  const std::int64_t tokens = data.task == io::Task::kNextToken ? data.input_shape[0] : 1;
  std::int64_t microbatch =
      std::min({lane_batch, largest, std::max<std::int64_t>(1, most_tokens / tokens)});
  while (lane_batch % microbatch != 0) {
    --microbatch;
  }
  return microbatch;
}

/// In fast mode the virtual grid is the grid.
void check_fast(const config::RunConfig& config, const grid::Grid& grid) {
  const auto check = [](std::string_view key, std::int64_t value, std::string_view axis,
                        std::int64_t ranks) {
    if (value != 0 && value != ranks) {
      fail(ExitCode::kUsage,
           "{} is {} and {} is {}, but numerics.mode = fast has as many as there are ranks; set {} "
           "to 0, or numerics.mode to invariant",
           key, value, axis, ranks, key);
    }
  };
  check("numerics.lanes", config.numerics.lanes, "parallel.data", grid.data);
  check("numerics.shards", config.numerics.shards, "parallel.tensor", grid.tensor);
}

/// Lanes, shards and the samples of a microbatch.
VirtualGrid resolve_virtual_grid(const config::RunConfig& given, const grid::Grid& grid,
                                 const io::DatasetInfo& data, const VirtualGrid& stored,
                                 device::DeviceKind device) {
  const bool fast = given.numerics.mode == comm::Summation::kLibrary;
  if (fast) {
    check_fast(given, grid);
  }
  const ReplicationPlan& replication = replication_of(given.parallel.sync);
  const std::int64_t parts = replication.resolve_parts(given, grid, stored);
  const std::int64_t jobs = replication.jobs(given, parts);
  const std::int64_t lanes =
      resolve_value("numerics.lanes", given.numerics.lanes, fast ? 0 : stored.lanes,
                    std::max(grid.replicas(), parts));
  const std::int64_t shards = resolve_value("numerics.shards", given.numerics.shards,
                                            fast ? 0 : stored.shards, grid.tensor);
  replication.check_lanes(lanes, parts);
  if (lanes / jobs % grid.replicas() != 0) {
    fail(ExitCode::kUsage,
         "numerics.lanes is {}, which parallel.data = {} does not divide; use a number of replicas "
         "that divides {}{}, or, in a new run, other lanes",
         lanes, grid.replicas(), lanes / jobs,
         given.parallel.data == 0 ? fmt::format(" (launch {} ranks)",
                                                launchable_ranks(given, grid.ranks(), lanes / jobs))
                                  : "");
  }
  if (shards % grid.tensor != 0) {
    fail(
        ExitCode::kUsage,
        "numerics.shards is {}, which parallel.tensor = {} does not divide; use a number of tensor "
        "ranks that divides {}, or, in a new run, other shards",
        shards, grid.tensor, shards);
  }
  check_batch(given.batch.global, fmt::format("{} lanes", lanes), lanes);
  const std::int64_t microbatch =
      resolve_value("batch.micro", given.batch.micro, stored.microbatch,
                    default_microbatch(given.batch.global / lanes, data, device));
  check_batch(given.batch.global,
              fmt::format("microbatches of {} samples in {} lane{}", microbatch, lanes,
                          lanes == 1 ? "" : "s"),
              microbatch * lanes);
  constexpr std::int64_t kMostMicrobatches = 1'000'000;
  const std::int64_t microbatches = given.batch.global / jobs / microbatch / grid.replicas();
  if (microbatches > kMostMicrobatches) {
    fail(
        ExitCode::kUsage,
        "batch.global is {}, which makes {} microbatches of {} samples on each rank, more than {}; "
        "lower it, or set a larger batch.micro",
        given.batch.global, microbatches, microbatch, kMostMicrobatches);
  }
  return {.lanes = lanes, .shards = shards, .microbatch = microbatch, .parts = parts};
}

std::int64_t default_loss_pieces(const Plan& plan, const nn::Model& replicated) {
  constexpr std::int64_t kLeastRows = 4096;
  const config::RunConfig& c = plan.config;
  const std::int64_t rows = nn::rows_at(replicated.output(), c.batch.micro);
  std::int64_t pieces = std::max<std::int64_t>(1, rows / kLeastRows);
  while (rows % pieces != 0) {
    --pieces;
  }
  if (!replicated.output().is_logits || pieces == 1) {
    return 1;
  }
  const std::int64_t full = size_bytes(compute_dtype(c.numerics.dtype));
  const std::int64_t stored = size_bytes(c.numerics.dtype);
  const auto states = std::ssize(optim::Optimizer::state_names(c.optimizer.options));
  // Weights, gradients, the optimizer's state and, unless these are the weights, master weights.
  const std::int64_t parameter_bytes =
      replicated.parameter_count() * (stored + full + states * full + (stored == full ? 0 : full));
  const auto stage_bytes = [&](std::int64_t loss_pieces) {
    const nn::StageSpec stage{
        .layers = {0, replicated.layer_count()},
        .pass = {.microbatch = c.batch.micro,
                 .dtype = c.numerics.dtype,
                 .shards = {.count = c.numerics.shards, .own = {0, c.numerics.shards}},
                 .logit_multiple = logit_multiple(plan.device),
                 .loss_pieces = loss_pieces},
        .order = nn::BackwardOrder::kFused};
    std::int64_t bytes = 0;
    for (const nn::MemoryItem& item : nn::Stage::memory(replicated, std::span(&stage, 1))) {
      bytes += item.bytes;
    }
    return bytes;
  };
  const std::int64_t whole = stage_bytes(1);
  return 10 * (whole - stage_bytes(pieces)) > parameter_bytes + whole ? pieces : 1;
}

}  // namespace

std::int64_t resolve_loss_pieces(
    const Plan& plan, const VirtualGrid& stored,
    const std::function<std::unique_ptr<nn::Model>()>& replicated_model) {
  const config::RunConfig& c = plan.config;
  const bool emulated = c.run.device == config::DeviceChoice::kEmulated;
  const bool chooses = plan.default_loss_pieces && !emulated && plan.model->output().is_logits;
  const std::int64_t pieces =
      resolve_value("numerics.loss_pieces", c.numerics.loss_pieces, stored.loss_pieces,
                    chooses ? default_loss_pieces(plan, *replicated_model()) : 1);
  const std::int64_t rows = nn::rows_at(plan.model->output(), c.batch.micro);
  if (rows % pieces != 0) {
    fail(ExitCode::kUsage,
         "numerics.loss_pieces is {}, which does not divide the {} tokens of a microbatch "
         "(batch.micro = {} times model.context = {}); give a number that divides them, or auto",
         pieces, rows, c.batch.micro, rows / c.batch.micro);
  }
  return pieces;
}

config::RunConfig resolve_config(const config::RunConfig& given, const grid::Grid& grid,
                                 const io::DatasetInfo& data, const VirtualGrid& stored,
                                 std::int64_t total_steps, device::DeviceKind device) {
  config::RunConfig config = given;
  if (nn::is_transformer(given.model.transformer.preset)) {
    config.model.transformer = nn::resolved(given.model.transformer);
  }
  config.model.loss = *enum_from_name<config::LossChoice>(name_of(resolve_loss(given, data)));
  if (data.task != io::Task::kNextToken) {
    config.data.normalise = io::resolved(given.data.normalise, data.input_dtype);
  }
  config.parallel.data = grid.replicas();
  const VirtualGrid virtual_grid = resolve_virtual_grid(given, grid, data, stored, device);
  config.numerics.lanes = virtual_grid.lanes;
  config.numerics.shards = virtual_grid.shards;
  config.batch.micro = virtual_grid.microbatch;
  replication_of(given.parallel.sync).resolve(config, grid, virtual_grid.parts, total_steps);
  if (given.parallel.bucket_mib == 0.0) {
    config.parallel.bucket_mib = device == device::DeviceKind::kCuda ? 64.0 : 4.0;
  }
  if (given.schedule.decay_steps == 0 && has_end(given.schedule.kind)) {
    config.schedule.decay_steps = total_steps;
  }
  return config;
}

std::int64_t resolve_steps(const config::RunConfig& config, std::int64_t samples) {
  const auto& t = config.train;
  if ((t.steps > 0) == (t.epochs > 0.0)) {
    fail(ExitCode::kUsage, "{}: set one of train.steps and train.epochs above 0",
         t.steps > 0 ? "train.steps and train.epochs are both set" : "the run has no length");
  }
  if (t.steps > 0) {
    return t.steps;
  }
  if (samples == 0) {
    fail(ExitCode::kUsage,
         "train.epochs is {}, but there is no data set to count them by; name one in "
         "data.train, or set train.steps",
         t.epochs);
  }
  constexpr double kMostSteps = 1e15;
  const double steps =
      std::ceil(t.epochs * static_cast<double>(samples) / static_cast<double>(config.batch.global));
  if (steps > kMostSteps) {
    fail(ExitCode::kUsage,
         "train.epochs is {}, which takes {:.3g} steps, more than {:.3g}; lower it", t.epochs,
         steps, kMostSteps);
  }
  return static_cast<std::int64_t>(steps);
}

pipeline::StageCosts emulated_costs(const config::RunConfig& config,
                                    const pipeline::Schedule& schedule) {
  constexpr double kSecondsPerMillisecond = 1e-3;
  pipeline::StageCosts costs{.times = pipeline::parse_chunk_times(
                                 {"emulated.forward", config.emulated.forward},
                                 {"emulated.backward_input", config.emulated.backward_input},
                                 {"emulated.backward_weight", config.emulated.backward_weight},
                                 schedule.stages, schedule.chunks)};
  for (std::vector<pipeline::ChunkTimes>& chunks : costs.times) {
    for (pipeline::ChunkTimes& times : chunks) {
      times.forward_seconds *= kSecondsPerMillisecond;
      times.backward_input_seconds *= kSecondsPerMillisecond;
      times.backward_weight_seconds *= kSecondsPerMillisecond;
    }
  }
  return costs;
}

void check_optimizer(const optim::OptimizerOptions& options) {
  if (options.kind == optim::OptimizerKind::kSgd && options.nesterov == ops::Nesterov::kOn &&
      options.momentum == 0.0) {
    fail(ExitCode::kUsage,
         "optimizer.nesterov is on, but optimizer.momentum is 0; set a momentum, such as 0.9");
  }
}

void apply_parameter_settings(const config::RunConfig& config, nn::Model& model) {
  std::vector<std::string> names;
  for (const nn::ParameterSpec& spec : model.parameters()) {
    if (spec.ownership == nn::Ownership::kOwned && spec.rule != nn::ParameterRule::kAverage) {
      names.push_back(spec.name);
    }
  }
  for (const optim::ParameterGroup& group : config.optimizer.options.groups) {
    group.names.require_matches("optimizer.groups", names);
  }
  if (model.has_adapters()) {
    model.train_adapters_and(nn::NamePatterns(config.lora.train));
  }
  if (!config.optimizer.frozen.empty()) {
    model.freeze(nn::NamePatterns(config.optimizer.frozen));
  }
}

nn::LossKind resolve_loss(const config::RunConfig& config, const io::DatasetInfo& data) {
  const bool classes = data.task != io::Task::kRegression;
  const nn::LossKind natural =
      classes ? nn::LossKind::kCrossEntropy : nn::LossKind::kMeanSquaredError;
  const auto asked = enum_from_name<nn::LossKind>(name_of(config.model.loss));
  if (asked && *asked != natural) {
    fail(ExitCode::kUsage,
         "model.loss is {}, but the data set {} has {} as targets, which needs {}", name_of(*asked),
         data.path.string(),
         data.task == io::Task::kNextToken ? "tokens"
         : classes                         ? "classes"
                                           : "values",
         name_of(natural));
  }
  return natural;
}

void check_augmentation(const io::Augmentation& augmentation, const io::DatasetInfo& data) {
  if (augmentation == io::Augmentation()) {
    return;
  }
  if (!io::is_image(data.input_shape)) {
    fail(ExitCode::kUsage,
         "data.flip, data.crop_padding and data.cutout are for images (channels x height x width), "
         "but samples of {} are {}; leave them out",
         data.path.string(), data.input_shape.text());
  }
  const std::int64_t shorter = std::min(data.input_shape[1], data.input_shape[2]);
  const auto require_within = [&](const char* key, std::int64_t pixels) {
    if (pixels > shorter) {
      fail(ExitCode::kUsage, "{} is {}, but the images of {} are {} x {}; give at most {}", key,
           pixels, data.path.string(), data.input_shape[1], data.input_shape[2], shorter);
    }
  };
  require_within("data.crop_padding", augmentation.crop_padding);
  require_within("data.cutout", augmentation.cutout);
}

namespace {

/// The limit of MPI's int counts: bytes of a message, or elements of a reduction.
constexpr double kMostCounted = 2147483647.0;

/// Rejects tensors between stages that are too long for one message.
void check_neighbours(const Plan& plan, const nn::PassShape& pass) {
  const config::RunConfig& c = plan.config;
  for (std::size_t s = 0; s + 1 < plan.split.stages.size(); ++s) {
    for (const std::int64_t tensor : plan.model->boundary_tensors(plan.split.stages[s].end)) {
      const nn::Port& port = plan.model->port_of(tensor);
      const auto bytes = static_cast<double>(nn::local_shape(port, pass).count()) *
                         static_cast<double>(size_bytes(c.numerics.dtype));
      if (bytes > kMostCounted) {
        fail(ExitCode::kUsage,
             "between stages {} and {} a microbatch of {} samples is a message of {:.3g} bytes, "
             "more than the limit of {:.0f}; lower batch.micro",
             s, s + 1, c.batch.micro, bytes, kMostCounted);
      }
    }
  }
}

/// Rejects a reduction over the tensor ranks, of the shape at a layer's input or output, that is
/// too long for its messages.
void check_sum(const Plan& plan, const nn::Layer& layer, const nn::Port& port) {
  const config::RunConfig& c = plan.config;
  if (port.placement == nn::Placement::kFeatures) {
    return;
  }
  const std::int64_t rows = nn::rows_at(port, c.batch.micro);
  const auto width = static_cast<double>(port.shape.back());
  if (c.numerics.mode == comm::Summation::kLibrary) {
    // The library reduces the whole tensor.
    const double elements = static_cast<double>(rows) * width;
    if (elements > kMostCounted) {
      fail(ExitCode::kUsage,
           "the tensor ranks' sums of layer {} have {:.3g} elements with microbatches of {} "
           "samples, more than the limit of {:.0f} in numerics.mode = fast; lower batch.micro",
           layer.name(), elements, c.batch.micro, kMostCounted);
    }
  }
  const std::int64_t most_rows = grid::even_part(rows, plan.grid.tensor, 0).count();
  const double bytes = static_cast<double>(most_rows) * width *
                       static_cast<double>(size_bytes(compute_dtype(c.numerics.dtype)));
  const bool sends_slices =
      c.numerics.mode == comm::Summation::kInvariant || port.placement == nn::Placement::kTokens;
  if (sends_slices && bytes > kMostCounted) {
    fail(ExitCode::kUsage,
         "the tensor ranks' sums of layer {} are messages of {:.3g} bytes with microbatches of {} "
         "samples, more than the limit of {:.0f}; lower batch.micro",
         layer.name(), bytes, c.batch.micro, kMostCounted);
  }
}

}  // namespace

nn::PassShape pass_shape(const Plan& plan, std::int64_t tensor) {
  const config::RunConfig& c = plan.config;
  return {
      .microbatch = c.batch.micro,
      .dtype = c.numerics.dtype,
      .shards = {.count = c.numerics.shards,
                 .own = grid::even_part(c.numerics.shards, plan.grid.tensor, tensor)},
      .recompute = c.train.recompute,
      .concurrent_lanes = plan.concurrent_lanes,
      .logit_multiple = logit_multiple(plan.device),
      .row_pieces = c.numerics.shards > 1 ? c.numerics.row_pieces : 1,
      .shard_sums = c.numerics.shards > 1 && c.numerics.shard_sums == config::ShardSums::kBfloat16
                        ? DType::kBfloat16
                        : DType::kFloat32,
      .loss_pieces = c.numerics.loss_pieces};
}

void check_stages(const Plan& plan) {
  const config::RunConfig& c = plan.config;
  // The first rank of a tensor group has the largest share.
  const nn::PassShape pass = pass_shape(plan, 0);
  check_neighbours(plan, pass);
  constexpr std::int64_t kMostRounded = 64;  // parts of cuda::fold_into
  if (pass.shard_sums == DType::kBfloat16 && plan.device == device::DeviceKind::kCuda &&
      plan.grid.tensor > kMostRounded) {
    fail(ExitCode::kUsage,
         "numerics.shard_sums is bfloat16 and parallel.tensor is {}; GPUs add at most {} rounded "
         "sums, so set numerics.shard_sums to float32 or parallel.tensor to at most {}",
         plan.grid.tensor, kMostRounded, kMostRounded);
  }
  const std::int64_t tokens = c.batch.micro * plan.model->input_shape()[0];
  if (pass.row_pieces > 1 && tokens % (pass.row_pieces * c.numerics.shards) != 0) {
    fail(
        ExitCode::kUsage,
        "numerics.row_pieces is {}, but the {} tokens of a microbatch (batch.micro = {} times "
        "model.context = {}) are not divisible by {} pieces of numerics.shards = {} shards; change "
        "one of them",
        pass.row_pieces, tokens, c.batch.micro, tokens / c.batch.micro, pass.row_pieces,
        c.numerics.shards);
  }
  for (std::int64_t i = 0; i < plan.model->layer_count(); ++i) {
    const nn::Layer& layer = plan.model->layer(i);
    layer.check(pass);
    if (layer.traffic(pass).messages > 0.0) {
      check_sum(plan, layer, layer.input());
      check_sum(plan, layer, layer.output());
    }
    const nn::Port& port = layer.output();
    const std::int64_t rows = nn::rows_at(port, c.batch.micro);
    if (port.placement == nn::Placement::kTokens && rows % c.numerics.shards != 0) {
      fail(ExitCode::kUsage,
           "parallel.sequence is on, but the {} tokens of a microbatch (batch.micro = {} times "
           "model.context = {}) are not divisible by numerics.shards = {}; change one of them",
           rows, c.batch.micro, rows / c.batch.micro, c.numerics.shards);
    }
  }
}

}  // namespace strata::plan
