#include "strata/train/plan.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/pipeline/simulator.hpp"

#include "batch_source.hpp"

namespace strata::train {
namespace {

grid::Grid decide_grid(const RunConfig& config, std::int64_t ranks) {
  grid::Grid grid{config.parallel.data, config.parallel.pipeline, config.parallel.tensor};
  if (grid.tensor != 1) {
    fail(ExitCode::kUsage,
         "parallel.tensor is {}; the layers of this version are not split by feature, so set it to "
         "1 and use "
         "parallel.data and parallel.pipeline",
         grid.tensor);
  }
  const std::int64_t model_ranks = grid.pipeline * grid.tensor;
  if (grid.data == 0) {
    grid.data = std::max<std::int64_t>(1, ranks / model_ranks);
  }
  if (grid.ranks() != ranks) {
    fail(ExitCode::kUsage,
         "the job has {} rank{}, but the grid {} needs {}; launch {} rank{}, or change "
         "parallel.data, parallel.pipeline "
         "or parallel.tensor",
         ranks, ranks == 1 ? "" : "s", grid.text(), grid.ranks(), grid.ranks(),
         grid.ranks() == 1 ? "" : "s");
  }
  return grid;
}

/// A stored value where the config says nothing, and no other where it does.
std::int64_t settled(std::string_view key, std::int64_t configured, std::int64_t stored,
                     std::int64_t otherwise) {
  if (stored != 0 && configured != 0 && stored != configured) {
    fail(ExitCode::kUsage,
         "{} is {}, but the checkpoint that this run continues was made with {}; it fixes the "
         "numbers, so leave it out "
         "or set it to {}",
         key, configured, stored, stored);
  }
  return configured != 0 ? configured : stored != 0 ? stored : otherwise;
}

/// `parts` says in words what the batch is divided into, `divisor` how many samples make one round.
void check_batch(std::int64_t value, const std::string& parts, std::int64_t divisor) {
  if (value % divisor == 0) {
    return;
  }
  const std::int64_t below = value / divisor * divisor;
  const std::string nearest =
      below > 0 ? fmt::format("{} or {}", below, below + divisor) : std::to_string(divisor);
  fail(ExitCode::kUsage, "batch.global is {}, which {} do not divide; the nearest that they do: {}",
       value, parts, nearest);
}

/// The largest divisor of a lane's samples that keeps matrix products efficient and leaves a
/// pipeline several microbatches.
std::int64_t default_microbatch(std::int64_t lane_batch) {
  constexpr std::int64_t kLargest = 32;
  std::int64_t microbatch = std::min(lane_batch, kLargest);
  while (lane_batch % microbatch != 0) {
    --microbatch;
  }
  return microbatch;
}

void decide_virtual_grid(Plan& plan, const VirtualGrid& stored) {
  RunConfig& c = plan.config;
  c.numerics.lanes = settled("numerics.lanes", c.numerics.lanes, stored.lanes, plan.grid.data);
  c.numerics.shards =
      settled("numerics.shards", c.numerics.shards, stored.shards, plan.grid.tensor);
  if (c.numerics.lanes % plan.grid.data != 0) {
    fail(ExitCode::kUsage,
         "numerics.lanes is {}, which parallel.data = {} does not divide; use a number of replicas "
         "that divides {}, or, "
         "in a new run, other lanes",
         c.numerics.lanes, plan.grid.data, c.numerics.lanes);
  }
  if (c.numerics.shards != 1) {
    fail(ExitCode::kUsage,
         "numerics.shards is {}; the layers of this version are not split by feature, so set it to "
         "1",
         c.numerics.shards);
  }
  check_batch(c.batch.global, fmt::format("{} lanes", c.numerics.lanes), c.numerics.lanes);
  const std::int64_t lane_batch = c.batch.global / c.numerics.lanes;
  c.batch.micro =
      settled("batch.micro", c.batch.micro, stored.microbatch, default_microbatch(lane_batch));
  check_batch(c.batch.global,
              fmt::format("microbatches of {} samples in {} lane{}", c.batch.micro,
                          c.numerics.lanes, c.numerics.lanes == 1 ? "" : "s"),
              c.batch.micro * c.numerics.lanes);
  plan.microbatches_per_lane = lane_batch / c.batch.micro;
  plan.microbatches = plan.microbatches_per_lane * (c.numerics.lanes / plan.grid.data);
  constexpr std::int64_t kMostMicrobatches = 1'000'000;
  if (plan.microbatches > kMostMicrobatches) {
    fail(
        ExitCode::kUsage,
        "batch.global is {}, which makes {} microbatches of {} samples on each rank, more than {}; "
        "lower it, or set a larger batch.micro",
        c.batch.global, plan.microbatches, c.batch.micro, kMostMicrobatches);
  }
  plan.lanes = grid::SumTree(c.numerics.lanes);
}

std::int64_t decide_steps(const RunConfig& config, std::int64_t samples) {
  const auto& t = config.train;
  if ((t.steps > 0) == (t.epochs > 0.0)) {
    fail(ExitCode::kUsage, "{}: set one of train.steps and train.epochs above 0",
         t.steps > 0 ? "train.steps and train.epochs are both set" : "the run has no length");
  }
  if (t.steps > 0) {
    return t.steps;
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

void check_optimizer(const optim::OptimizerOptions& options) {
  if (options.kind == optim::OptimizerKind::kSgd && options.nesterov == ops::Nesterov::kOn &&
      options.momentum == 0.0) {
    fail(ExitCode::kUsage,
         "optimizer.nesterov is on, but optimizer.momentum is 0; set a momentum, such as 0.9");
  }
}

nn::LossKind decide_loss(const RunConfig& config, const io::DatasetInfo& data) {
  const bool classes = data.task == io::Task::kClassification;
  const nn::LossKind natural =
      classes ? nn::LossKind::kCrossEntropy : nn::LossKind::kMeanSquaredError;
  const auto asked = enum_from_name<nn::LossKind>(name_of(config.model.loss));
  if (asked && *asked != natural) {
    fail(ExitCode::kUsage,
         "model.loss is {}, but the data set {} has {} as targets, which needs {}", name_of(*asked),
         data.path.string(), classes ? "classes" : "values", name_of(natural));
  }
  return natural;
}

}  // namespace

namespace {

/// MPI counts the bytes of a message in 32 bits.
void check_message_sizes(const Plan& plan) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 31;
  const RunConfig& c = plan.config;
  for (std::size_t s = 0; s + 1 < plan.split.stages.size(); ++s) {
    const nn::Layer& layer = plan.model->layer(plan.split.stages[s].end - 1);
    const auto bytes = static_cast<double>(c.batch.micro) *
                       static_cast<double>(layer.output_shape().count()) *
                       static_cast<double>(size_bytes(c.numerics.dtype));
    if (bytes >= static_cast<double>(kMostBytes)) {
      fail(ExitCode::kUsage,
           "between the stages {} and {} a microbatch of {} samples is a message of {:.3g} bytes, "
           "at most {} fit; lower batch.micro",
           s, s + 1, c.batch.micro, bytes, kMostBytes);
    }
  }
}

}  // namespace

Plan prepare(const RunConfig& config, std::int64_t ranks, const io::DatasetInfo& train_data,
             const VirtualGrid& stored) {
  Plan plan;
  plan.config = config;
  plan.train_data = train_data;
  plan.grid = decide_grid(config, ranks);
  plan.config.parallel.data = plan.grid.data;
  decide_virtual_grid(plan, stored);
  check_optimizer(config.optimizer.options);
  plan.total_steps = decide_steps(plan.config, train_data.samples);
  if (plan.config.schedule.decay_steps == 0) {
    plan.config.schedule.decay_steps = plan.total_steps;
  }
  const bool classes = train_data.task == io::Task::kClassification;
  plan.model = std::make_unique<nn::Model>(
      nn::ModelOptions{.layers = config.model.layers,
                       .loss = decide_loss(config, train_data),
                       .input_shape = train_data.input_shape,
                       .outputs = classes ? train_data.classes : train_data.target_shape.count(),
                       .seed = config.run.seed});
  plan.split = nn::split_model(*plan.model, plan.grid.pipeline, config.parallel.split);
  plan.training =
      pipeline::make_schedule(config.parallel.schedule, plan.grid.pipeline, plan.microbatches);
  plan.evaluation = pipeline::make_schedule(pipeline::ScheduleKind::kForwardOnly,
                                            plan.grid.pipeline, plan.microbatches);
  check_message_sizes(plan);
  pipeline::require_sound(plan.training);
  pipeline::require_sound(plan.evaluation);
  return plan;
}

RankPlan rank_plan(const Plan& plan, std::int64_t rank) {
  const RunConfig& c = plan.config;
  const grid::Coordinates place = plan.grid.coordinates_of(rank);
  const grid::Range layers = plan.split.stages[static_cast<std::size_t>(place.pipeline)];
  nn::ParameterLayout layout = nn::layout_of(plan.model->parameters(), layers);
  const auto bucket_elements = std::max<std::int64_t>(
      nn::ParameterLayout::kBlock,
      static_cast<std::int64_t>(c.parallel.bucket_mib * 1048576.0) / size_bytes(c.numerics.dtype));
  optim::BucketPlan buckets(layout, plan.grid.data, bucket_elements);
  const bool first = place.pipeline == 0;
  const bool last = place.pipeline + 1 == plan.grid.pipeline;
  RankPlan result{.place = place,
                  .layers = layers,
                  .layout = std::move(layout),
                  .buckets = std::move(buckets),
                  .slots = pipeline::slots_for(plan.training, place.pipeline),
                  .parts = first && last ? io::Parts::kBoth
                           : first       ? io::Parts::kInputs
                                         : io::Parts::kTargets,
                  .loads = first || last};
  result.reducer_sizes = {.elements = result.layout.elements,
                          .microbatches_per_lane = plan.microbatches_per_lane,
                          .dtype = c.numerics.dtype};
  for (std::int64_t m = 0; m < plan.microbatches; ++m) {
    result.offsets.push_back((place.data * plan.microbatches + m) * c.batch.micro);
  }

  const std::int64_t element_bytes = size_bytes(c.numerics.dtype);
  result.memory.push_back({"weights", result.layout.elements * element_bytes});
  for (nn::MemoryItem& item : optim::GradientReducer::memory(
           plan.lanes, plan.grid.data, place.data, result.buckets, result.reducer_sizes)) {
    result.memory.push_back(std::move(item));
  }
  for (nn::MemoryItem& item : optim::Optimizer::memory(c.optimizer.options, result.buckets,
                                                       place.data, c.numerics.dtype)) {
    result.memory.push_back(std::move(item));
  }
  for (nn::MemoryItem& item :
       nn::Stage::memory(*plan.model, layers, c.batch.micro, result.slots, c.numerics.dtype)) {
    result.memory.push_back(std::move(item));
  }
  result.memory.push_back(
      {"samples, training",
       result.loads ? io::Loader::memory_bytes(plan.train_data, training_loader(plan, result, 0))
                    : 0});
  const bool evaluates = result.loads && !c.data.test.empty();
  result.memory.push_back(
      {"samples, evaluation",
       evaluates ? io::Loader::memory_bytes(plan.train_data, evaluation_loader(plan, result, 1))
                 : 0});
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
  for (std::int64_t rank = 0; rank < plan.grid.ranks(); rank += plan.grid.data * plan.grid.tensor) {
    buckets += rank_plan(plan, rank).buckets.text();
  }
  std::string split;
  for (const grid::Range& stage : plan.split.stages) {
    split += fmt::format("{}-{};", stage.begin, stage.end);
  }
  return {{"config", hash_of(config_text)},
          {"grid", hash_of(plan.grid.text() + split)},
          {"schedule", hash_of(schedule)},
          {"buckets", hash_of(buckets)},
          {"length", hash_of(fmt::format("{}", plan.total_steps))}};
}

namespace {

std::int64_t total_bytes(const RankPlan& rank) {
  std::int64_t total = 0;
  for (const nn::MemoryItem& item : rank.memory) {
    total += item.bytes;
  }
  return total;
}

/// The rank of a stage that needs most memory: where lanes are no power of two, replicas hold
/// different numbers of partial sums.
RankPlan largest_rank_plan(const Plan& plan, std::int64_t stage) {
  RankPlan largest = rank_plan(plan, plan.grid.rank_of({.pipeline = stage}));
  for (std::int64_t d = 1; d < plan.grid.data; ++d) {
    RankPlan rank = rank_plan(plan, plan.grid.rank_of({.data = d, .pipeline = stage}));
    if (total_bytes(rank) > total_bytes(largest)) {
      largest = std::move(rank);
    }
  }
  return largest;
}

}  // namespace

std::string plan_text(const Plan& plan) {
  const RunConfig& c = plan.config;
  std::string text = nn::model_table(*plan.model, plan.split) + "\n";
  text += fmt::format("grid: {}; virtual grid: {} lanes x {} shards\n", plan.grid.text(),
                      c.numerics.lanes, c.numerics.shards);
  text += fmt::format(
      "batch: {} samples = {} replica{} x {} microbatches x {} samples; {} steps = {:.2f} epochs\n",
      c.batch.global, plan.grid.data, plan.grid.data == 1 ? "" : "s", plan.microbatches,
      c.batch.micro, plan.total_steps,
      static_cast<double>(plan.total_steps) * static_cast<double>(c.batch.global) /
          static_cast<double>(plan.train_data.samples));
  if (plan.train_data.samples < c.batch.global) {
    text += fmt::format(
        "warning: a batch of {} holds samples of the {} in the data set several times\n",
        c.batch.global, plan.train_data.samples);
  }
  // Forward, input gradient and weight gradient take about as long as each other in dense layers.
  const pipeline::Simulation simulation =
      pipeline::simulate(plan.training, pipeline::equal_costs(plan.grid.pipeline, 1.0, 1.0, 1.0));
  text += fmt::format("schedule: {}, {} stage{}, bubble {:.1f} % with equal stages\n",
                      name_of(plan.training.kind), plan.grid.pipeline,
                      plan.grid.pipeline == 1 ? "" : "s", 100.0 * simulation.bubble_fraction);
  std::vector<std::vector<std::string>> rows{{"memory of a rank"}};
  for (std::int64_t s = 0; s < plan.grid.pipeline; ++s) {
    rows[0].push_back(fmt::format("stage {}", s));
    const RankPlan rank = largest_rank_plan(plan, s);
    std::int64_t total = 0;
    for (std::size_t i = 0; i <= rank.memory.size(); ++i) {
      if (rows.size() == i + 1) {
        rows.push_back({i < rank.memory.size() ? rank.memory[i].name : "total"});
      }
      const std::int64_t bytes = i < rank.memory.size() ? rank.memory[i].bytes : total;
      total += bytes;
      rows[i + 1].push_back(bytes_text(bytes));
    }
  }
  return text + table_text(rows);
}

}  // namespace strata::train
