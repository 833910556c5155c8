#include "resolve.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/nn/layer_line.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/plan/replication.hpp"

namespace strata::plan {

namespace {

/// Whether a learning rate of this kind ends, at its minimum.
bool has_end(optim::LearningRateKind kind) {
  return kind == optim::LearningRateKind::kLinear || kind == optim::LearningRateKind::kCosine;
}

std::int64_t logit_multiple(device::DeviceKind device) {
  return device == device::DeviceKind::kCuda ? ops::kPaddedRow : 1;
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
  const std::int64_t states = optim::UpdateRule::states(c.optimizer.options);
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
    return nn::total_bytes(nn::Stage::memory(replicated, std::span(&stage, 1)));
  };
  const std::int64_t whole = stage_bytes(1);
  return 10 * (whole - stage_bytes(pieces)) > parameter_bytes + whole ? pieces : 1;
}

}  // namespace

ModelGrid model_grid(const Plan& plan) {
  return {.step_microbatches = part_batch(plan) / plan.config.batch.micro,
          .lanes = plan.lanes.tree().leaves(),
          .shards = plan.config.numerics.shards,
          .token_rows = plan.token_rows};
}

nn::Placement resolve_token_rows(const config::RunConfig& config, const io::DatasetInfo& data) {
  if (config.parallel.sequence) {
    return config.parallel.sequence == Switch::kOn ? nn::Placement::kTokens
                                                   : nn::Placement::kReplicated;
  }
  // The library's sums of numerics.mode = fast send whole rows either way.
  if (config.parallel.tensor == 1 || data.task != io::Task::kNextToken ||
      config.numerics.mode != comm::Summation::kInvariant ||
      config.batch.micro * data.input_shape[0] % config.numerics.shards != 0) {
    return nn::Placement::kReplicated;
  }
  std::vector<std::string> kinds;
  for (const std::string& line : layer_lines(config, data)) {
    kinds.push_back(nn::LayerLine(line).kind());
  }
  const bool needs_whole_rows = std::ranges::any_of(
      kinds, [](const std::string& kind) { return kind == "dense" || kind == "batch_norm"; });
  return needs_whole_rows || kinds.empty() || kinds.back() != "head" ? nn::Placement::kReplicated
                                                                     : nn::Placement::kTokens;
}

std::int64_t resolve_loss_pieces(const Plan& plan, const VirtualGrid& stored) {
  const config::RunConfig& c = plan.config;
  const bool chooses = plan.chosen.contains("numerics.loss_pieces") &&
                       plan.model->output().is_logits && !compares_documents(plan);
  // With replicated rows, so that the choice does not depend on the grid.
  ModelGrid replicated = model_grid(plan);
  replicated.token_rows = nn::Placement::kReplicated;
  const std::int64_t pieces = resolve_value(
      "numerics.loss_pieces", c.numerics.loss_pieces, stored.loss_pieces,
      chooses ? default_loss_pieces(plan, *make_model(c, plan.train_data, replicated)) : 1);
  const std::int64_t rows = nn::rows_at(plan.model->output(), c.batch.micro);
  if (rows % pieces != 0) {
    fail(ExitCode::kUsage,
         "numerics.loss_pieces is {}, which does not divide the {} tokens of a microbatch "
         "(batch.micro = {} times model.context = {}); give a number that divides them, or auto",
         pieces, rows, c.batch.micro, rows / c.batch.micro);
  }
  return pieces;
}

void resolve_objective(config::RunConfig& config) {
  if (config.train.objective != config::Objective::kDpo) {
    return;
  }
  config.data.packing = io::Packing::kPairs;
  nn::TransformerOptions& transformer = config.model.transformer;
  if (nn::is_transformer(transformer.preset)) {
    transformer.attention_mask = nn::AttentionMaskKind::kDocument;
    if (transformer.positions == nn::PositionChoice::kLearned) {
      transformer.reset_positions = Switch::kOn;
    }
  }
}

config::RunConfig resolve_config(const config::RunConfig& given, const grid::Grid& grid,
                                 const io::DatasetInfo& data, const VirtualGrid& stored,
                                 std::int64_t total_steps, device::DeviceKind device) {
  config::RunConfig config = given;
  if (nn::is_transformer(given.model.transformer.preset)) {
    config.model.transformer = nn::resolved(given.model.transformer);
  }
  resolve_objective(config);
  config.model.loss = resolve_loss(given, data);
  if (data.task != io::Task::kNextToken) {
    config.data.normalise = io::resolved(given.data.normalise, data);
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
  resolve_kind(config);
  if (given.schedule.decay_steps == 0 && has_end(given.schedule.kind)) {
    config.schedule.decay_steps = total_steps;
  }
  return config;
}

namespace {

/// The peak rate that suits an update rule, a number of parameters and the weights at the start.
/// Sources for adam: 0.0006 for 124 million parameters (Brown et al., "Language models are few-shot
/// learners", arXiv 2005.14165, table 2.1), and the fourth root as from there to 65 billion in
/// Touvron et al., "LLaMA", arXiv 2302.13971, table 2. docs/decisions/0016 has the rates measured.
double suitable_rate(const config::RunConfig& config, std::int64_t parameters) {
  constexpr double kAnchorRate = 6e-4;
  constexpr double kAnchorParameters = 124e6;
  constexpr double kMostAdam = 0.01;
  const optim::OptimizerOptions& options = config.optimizer.options;
  double rate = 0.0;
  switch (options.kind) {
    case optim::OptimizerKind::kSgd:
      rate = 0.1 * (1.0 - options.momentum);
      break;
    case optim::OptimizerKind::kAdagrad:
      rate = 0.01;
      break;
    case optim::OptimizerKind::kAdam:
    case optim::OptimizerKind::kAdamw: {
      const auto count = static_cast<double>(std::max<std::int64_t>(1, parameters));
      rate = std::min(kMostAdam, kAnchorRate * std::pow(kAnchorParameters / count, 0.25));
      break;
    }
  }
  // Trained weights must not be forgotten.
  rate *= config.checkpoint.init.empty() ? 1.0 : 0.1;
  // Two digits: the same on every machine's pow().
  return std::stod(fmt::format("{:.1e}", rate));
}

}  // namespace

void resolve_kind(config::RunConfig& config) {
  if (!config.optimizer.kind) {
    check_open_rate(config.schedule.peak);
    config.optimizer.kind = optim::OptimizerKind::kAdamw;
  }
  config.optimizer.options.kind = *config.optimizer.kind;
}

void resolve_rate(const config::RunConfig& given, const nn::Model& model, std::int64_t total_steps,
                  config::RunConfig& config) {
  constexpr std::int64_t kMostWarmup = 100;
  constexpr std::int64_t kWarmupShare = 20;
  const bool open_rate = given.schedule.peak == config::kOpen;
  const bool open_kind = !given.optimizer.kind;
  if (open_rate) {
    std::int64_t trained = 0;
    for (const nn::ParameterSpec& spec : model.parameters()) {
      if (spec.ownership == nn::Ownership::kOwned && spec.rule == nn::ParameterRule::kTrained) {
        trained += spec.shape.count();
      }
    }
    config.schedule.peak = suitable_rate(config, trained);
  }
  if (given.schedule.warmup_steps == config::kOpen) {
    config.schedule.warmup_steps =
        open_rate || open_kind ? std::min(kMostWarmup, total_steps / kWarmupShare) : 0;
  }
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

}  // namespace strata::plan
