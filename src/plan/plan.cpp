#include "strata/plan/plan.hpp"

#include <algorithm>

#include "strata/core/error.hpp"
#include "strata/nn/layer_trace.hpp"
#include "strata/plan/replication.hpp"

#include "resolve.hpp"
#include "training_schedule.hpp"

namespace strata::plan {

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

}  // namespace

void set_target_units(Plan& plan, const std::vector<double>& mean,
                      const std::vector<double>& deviation) {
  if (plan.train_data.task != io::Task::kRegression) {
    return;
  }
  plan.train_data.target_mean = mean;
  plan.train_data.target_deviation = deviation;
  std::ranges::replace(plan.train_data.target_deviation, 0.0, 1.0);
  plan.config.data.targets = mean.empty() ? io::TargetUnits::kNone : io::TargetUnits::kStandard;
}

Plan prepare(const config::RunConfig& asked, std::int64_t ranks, const io::DatasetInfo& train_data,
             const VirtualGrid& of_checkpoint, device::DeviceKind device, ProvenSchedules* proven) {
  const VirtualGrid stored = kept_grid(asked, of_checkpoint);
  const config::RunConfig given = with_grid(asked, ranks, train_data, stored);
  check_optimizer(given);
  check_augmentation(given.data.augmentation, train_data);
  Plan plan;
  plan.device = device;
  plan.train_data = train_data;
  plan.grid = resolve_grid(given, ranks, stored.lanes);
  plan.total_steps = resolve_steps(given, train_data.samples);
  if (given.run.timeline && given.run.timeline->last > plan.total_steps) {
    fail(ExitCode::kUsage,
         "run.timeline = {}-{}, but the run has {} steps; give steps from 1 to {}",
         given.run.timeline->first, given.run.timeline->last, plan.total_steps, plan.total_steps);
  }
  plan.config = resolve_config(given, plan.grid, train_data, stored, plan.total_steps, device);
  if (stored != of_checkpoint) {
    plan.former = of_checkpoint;
  }
  if (given.data.targets == io::TargetUnits::kNone) {
    set_target_units(plan, {}, {});
  } else {
    set_target_units(plan, train_data.target_mean, train_data.target_deviation);
  }
  plan.node_replicas = resolve_node_replicas(given, plan.grid);
  const auto note_choice = [&](std::string_view key, std::int64_t configured, std::int64_t kept) {
    if (configured == 0 && kept == 0) {
      plan.chosen.insert(key);
    }
  };
  note_choice("numerics.lanes", given.numerics.lanes, stored.lanes);
  note_choice("batch.micro", given.batch.micro, stored.microbatch);
  note_choice("numerics.loss_pieces", given.numerics.loss_pieces, stored.loss_pieces);
  if (!given.optimizer.kind) {
    plan.chosen.insert("optimizer.kind");
  }
  if (given.schedule.peak == config::kOpen) {
    plan.chosen.insert("optimizer.learning_rate");
  }
  const ReplicationPlan& replication = replication_of(plan);
  replication.divide(plan);
  plan.lanes = grid::Assignment::blocked(grid::SumTree(plan.config.numerics.lanes / plan.parts),
                                         plan.grid.data);
  const std::int64_t step_microbatches = part_batch(plan) / plan.config.batch.micro;
  plan.microbatches_per_lane = step_microbatches / plan.lanes.tree().leaves();
  plan.microbatches = step_microbatches / plan.grid.data;
  plan.token_rows = resolve_token_rows(plan.config, train_data);
  plan.model = make_model(plan.config, train_data, model_grid(plan));
  apply_parameter_settings(plan.config, *plan.model);
  resolve_rate(given, *plan.model, plan.total_steps, plan.config);
  plan.fragments = replication.fragments(plan);
  check_unused(given, plan);
  check_objective(given, plan);
  check_receipts(given, plan);
  plan.config.numerics.loss_pieces = resolve_loss_pieces(plan, stored);
  if (given.run.tensorboard_text > 0 && plan.config.numerics.loss_pieces > 1) {
    fail(ExitCode::kUsage,
         "run.tensorboard_text is {}, but with numerics.loss_pieces = {} the head keeps no logits; "
         "leave it out, or set numerics.loss_pieces to 1 in a new run",
         given.run.tensorboard_text, plan.config.numerics.loss_pieces);
  }
  if (plan.model->loss() == nn::LossKind::kCrossEntropy && !compares_documents(plan)) {
    plan.targets_per_sample = nn::rows_at(plan.model->output(), 1);
  }
  replication.check(plan);
  if (plan.model->joins_lanes()) {
    plan.concurrent_lanes = plan.lanes.rounds();
  }
  const std::int64_t microbatches = plan.microbatches / plan.concurrent_lanes;
  TrainingSchedule training =
      training_schedule(plan.config, *plan.model, plan.grid.pipeline, microbatches, device, proven);
  plan.training = std::move(training.schedule);
  plan.schedule_search = std::move(training.search);
  plan.backward = backward_order(plan.config, plan.training);
  plan.evaluation =
      evaluation_schedule(plan.training.order, plan.grid.pipeline, microbatches, device, proven);
  const std::int64_t chunks = std::ssize(plan.training.order.chunks());
  // One chunk has all layers, whatever they cost.
  std::vector<double> costs(static_cast<std::size_t>(plan.model->layer_count()));
  if (chunks > 1) {
    costs = nn::layer_costs(*plan.model);
  }
  plan.split = nn::split_model(*plan.model, costs, chunks, given.parallel.split);
  check_stages(plan);
  return plan;
}

Plan without_grid(const config::RunConfig& given, const io::DatasetInfo& train_data) {
  Plan plan;
  plan.config = given;
  resolve_kind(plan.config);
  plan.train_data = train_data;
  if (nn::is_transformer(given.model.transformer.preset)) {
    plan.config.model.transformer = nn::resolved(given.model.transformer);
  }
  resolve_objective(plan.config);
  plan.model = make_model(plan.config, train_data, {});
  apply_parameter_settings(plan.config, *plan.model);
  return plan;
}

std::optional<Plan> try_prepare(const config::RunConfig& given, std::int64_t ranks,
                                const io::DatasetInfo& train_data, const VirtualGrid& stored,
                                device::DeviceKind device, ProvenSchedules* proven) {
  try {
    return prepare(given, ranks, train_data, stored, device, proven);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace strata::plan
