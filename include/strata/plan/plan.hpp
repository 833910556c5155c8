#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "strata/comm/agree.hpp"
#include "strata/config/run_config.hpp"
#include "strata/device/device.hpp"
#include "strata/grid/split.hpp"
#include "strata/grid/tree.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/loader.hpp"
#include "strata/nn/stage.hpp"
#include "strata/optim/buckets.hpp"
#include "strata/optim/gradient_reducer.hpp"
#include "strata/optim/tied_exchange.hpp"
#include "strata/pipeline/schedule.hpp"
#include "strata/pipeline/simulator.hpp"

namespace strata::plan {

/// A search for a schedule.
struct ScheduleSearch {
  pipeline::StageCosts costs;  ///< relative
  /// The most of its step time that another order of the same chunks could save.
  double optimality_gap = 0.0;
};

/// The virtual grid of a run, which is fixed when a checkpoint continues it.
struct VirtualGrid {
  std::int64_t lanes = 0;  ///< 0: not set yet
  std::int64_t shards = 0;
  std::int64_t microbatch = 0;
  std::int64_t loss_pieces = 0;
  std::int64_t parts = 0;
  /// The grid that wrote the checkpoint, kept where parallel.* is auto; 0: not known.
  std::int64_t pipeline = 0;
  std::int64_t tensor = 0;
  /// Of a checkpoint: the command line gives lanes or shards, which is the user's consent to
  /// others.
  bool consent = false;

  friend bool operator==(const VirtualGrid&, const VirtualGrid&) = default;
};

/// Everything that follows from the config, the data set and the number of ranks. The same on every
/// rank; holds no tensors and sends no messages.
struct Plan {
  /// Resolved; the config that the user gave is the caller's.
  config::RunConfig config;
  /// Where stages compute and allocate.
  device::DeviceKind device = device::DeviceKind::kCpu;
  grid::Grid grid;
  /// Consecutive replicas that share nodes: their gradients are added first.
  std::int64_t node_replicas = 1;
  /// Its statistics of targets are those of the units that the model learns; empty for none.
  io::DatasetInfo train_data;
  /// Of a transformer's layers, outside the products that tensor ranks share.
  nn::Placement token_rows = nn::Placement::kReplicated;
  std::unique_ptr<nn::Model> model;
  /// Of all chunks, in layer order: those of `training.order`.
  grid::StageSplit split;
  grid::Assignment lanes =
      grid::Assignment::blocked(grid::SumTree(1), 1);  ///< of one part, over the data group
  /// The checkpoint's, where the run goes on with other lanes or shards by consent.
  std::optional<VirtualGrid> former;
  /// The settings that strata chose, in neither the config nor the checkpoint, of numerics.lanes
  /// and batch.micro, which may become smaller, numerics.loss_pieces, which depends on it,
  /// optimizer.kind and optimizer.learning_rate.
  std::set<std::string_view> chosen;
  std::int64_t microbatches_per_lane = 1;
  /// Of one part, per rank and step.
  std::int64_t microbatches = 1;
  /// Parts of a step's batch that are trained apart (ReplicationPlan).
  std::int64_t parts = 1;
  /// Those that one rank trains, one after the other.
  std::int64_t parts_per_rank = 1;
  /// Those of this job.
  grid::Range job_parts{0, 1};
  /// Consecutive layers whose weights are averaged together, one part of local.fragments.
  std::vector<grid::Range> fragments;
  /// Own lanes whose microbatches pass each layer together; 1 where no layer joins lanes.
  std::int64_t concurrent_lanes = 1;
  /// What the loss of a sample is a sum over: its tokens for a language model; else, and for a pair
  /// of answers, 1.
  std::int64_t targets_per_sample = 1;
  std::int64_t total_steps = 0;
  pipeline::Schedule training;
  nn::BackwardOrder backward = nn::BackwardOrder::kFused;
  std::optional<ScheduleSearch> schedule_search;  ///< parallel.schedule = auto
  pipeline::Schedule evaluation;
};

/// A value that the model gives for a target, or learns, in the data's units.
[[nodiscard]] inline double in_units_of_data(const Plan& plan, std::size_t target, double value) {
  const io::DatasetInfo& data = plan.train_data;
  return data.target_mean.empty()
             ? value
             : value * data.target_deviation[target] + data.target_mean[target];
}

[[nodiscard]] inline bool is_language_model(const Plan& plan) {
  return plan.train_data.task == io::Task::kNextToken;
}

/// Tokens of a sample of a language model, else 1.
[[nodiscard]] inline std::int64_t tokens_per_sample(const Plan& plan) {
  return is_language_model(plan) ? plan.train_data.input_shape[0] : 1;
}
/// Whether a sample is a pair of answers that the loss compares.
[[nodiscard]] inline bool compares_documents(const Plan& plan) {
  return plan.model->loss_options().compares_documents();
}

/// Whether exp(loss) is one: the loss is that of each token.
[[nodiscard]] inline bool has_perplexity(const Plan& plan) {
  return is_language_model(plan) && !compares_documents(plan);
}

/// Whether layers or the loss tell the documents of a sample apart.
[[nodiscard]] inline bool separates_documents(const Plan& plan) {
  return plan.model->reads_document_starts() || plan.model->reads_positions() ||
         compares_documents(plan);
}
/// Whether some targets of the training data may count nowhere.
[[nodiscard]] inline bool leaves_targets_out(const Plan& plan) {
  const io::DatasetInfo& data = plan.train_data;
  return has_perplexity(plan) &&
         (separates_documents(plan) || data.packed_inputs > 0 || data.counted_tokens < data.tokens);
}

/// Samples of one part in a step.
[[nodiscard]] inline std::int64_t part_batch(const Plan& plan) {
  return plan.config.batch.global / plan.parts;
}
/// Samples of this job's ranks in a step.
[[nodiscard]] inline std::int64_t job_batch(const Plan& plan) {
  return part_batch(plan) * plan.job_parts.count();
}
/// The index of the first of them in the global batch.
[[nodiscard]] inline std::int64_t first_of_job(const Plan& plan) {
  return part_batch(plan) * plan.job_parts.begin;
}
/// Whether the run may go on after a later step than its own, which other jobs have reached.
[[nodiscard]] inline bool may_skip_steps(const Plan& plan) {
  return plan.job_parts.count() < plan.parts;
}

/// Whether steps are repeated on other lanes (train.repeat_every). The sums of `numerics.mode =
/// fast` depend on the assignment.
[[nodiscard]] inline bool repeats_steps(const Plan& plan) {
  return plan.config.train.repeat_every != 0 && plan.config.train.check == config::Switch::kOn &&
         plan.config.numerics.mode == comm::Summation::kInvariant &&
         plan.config.parallel.sync == config::Sync::kStep;
}

/// One kind of messages that a rank sends in a training step, on average.
struct Traffic {
  std::string name;
  double messages = 0.0;
  double bytes = 0.0;
};

/// One rank's part of a plan.
struct RankPlan {
  grid::Coordinates coordinates;
  grid::Range own_parts{0, 1};        ///< its share of Plan::job_parts
  std::vector<nn::StageSpec> chunks;  ///< in layer order; at least one
  nn::ParameterLayout layout;
  optim::BucketPlan buckets;
  nn::ParameterLayout frozen;  ///< of Placed::kWithoutGradients
  /// Which data rank has the master copies of frozen weights, and writes them to checkpoints.
  optim::BucketPlan frozen_buckets;
  /// How the parameters are divided among servers, where there are any.
  std::optional<optim::BucketPlan> server_buckets;
  optim::GradientReducer::Sizes reducer_sizes;
  io::Parts loaded_parts = io::Parts::kInputs;  ///< of samples, by its loader
  bool loads = false;
  /// The index of each microbatch's first sample in the global batch; of one part after the other.
  std::vector<std::int64_t> offsets;
  /// Its arenas in device memory.
  std::vector<nn::MemoryItem> memory;
  /// Its allocations in host memory where the device is a GPU; else empty.
  std::vector<nn::MemoryItem> host_memory;

  /// What it owns of `layout` and of `frozen`. Refers to this object.
  [[nodiscard]] optim::Ownership owned() const { return {layout, buckets, coordinates.data}; }
  [[nodiscard]] optim::Ownership owned_frozen() const {
    return {frozen, frozen_buckets, coordinates.data};
  }
};

[[nodiscard]] VirtualGrid virtual_grid_of(const Plan& plan);
/// As in "8 lanes x 1 shard in microbatches of 16".
[[nodiscard]] std::string virtual_grid_text(const VirtualGrid& grid);

/// The virtual grid on which the config continues a checkpoint: `stored`, or, where the config
/// gives other lanes or shards with stored.consent, these, with the microbatch of the config or the
/// largest that fits and is no larger than the checkpoint's.
[[nodiscard]] VirtualGrid kept_grid(const config::RunConfig& given, const VirtualGrid& stored);

/// The lanes of a new run of `replicas`, of those parts of its batch that have `samples`: as many
/// as there are replicas, doubled up to 8 while the microbatch stays as large as it is without. A
/// smaller one is accepted while it keeps 512 tokens (on GPUs 8192), or, on CPUs and up to 4 lanes,
/// 8 samples. Mostly the same for 1, 2, 4 and 8 replicas.
[[nodiscard]] std::int64_t default_lanes(const config::RunConfig& config, std::int64_t samples,
                                         std::int64_t replicas, const io::DatasetInfo& data,
                                         device::DeviceKind device = device::DeviceKind::kCpu);

/// The replicas whose ranks of one stage share a node, where nodes of `node_ranks` consecutive
/// ranks hold several but not all and the same number everywhere; 1 for all else.
[[nodiscard]] std::int64_t node_replicas(const config::RunConfig& config, const grid::Grid& grid,
                                         std::int64_t node_ranks);

/// Sets a plan's node_replicas for a launch on nodes of `node_ranks` ranks, unless the config does.
void set_node_ranks(Plan& plan, std::int64_t node_ranks);

/// The `layer =` lines of the model: the config's, or the expansion of its preset.
/// Throws: Error(kUsage) where the config has both or neither.
[[nodiscard]] std::vector<std::string> layer_lines(const config::RunConfig& config,
                                                   const io::DatasetInfo& data);

/// Tokens of a sample of a language model. Throws: Error(kUsage) where the config does not say.
[[nodiscard]] std::int64_t context_of(const config::RunConfig& config);
/// Opens data.train, a data set or a mixture as mixture_sets() reads it, and, where it holds
/// tokens, divides them into samples as the config says. Throws: as Dataset::open(),
/// Dataset::open_several(), Dataset::set_context() and context_of().
[[nodiscard]] io::Dataset open_train_data(const config::RunConfig& config);
/// The same of a data set to evaluate on, as data.test; several are not mixed. Throws:
/// Error(kUsage) for a weight.
[[nodiscard]] io::Dataset open_test_data(const config::RunConfig& config, const std::string& text);

/// A stand-in for a data set that does not exist yet, so that a job can be planned before its data
/// are imported. Throws: Error(kUsage) where the config does not give the model's vocabulary.
[[nodiscard]] io::DatasetInfo assumed_data(const config::RunConfig& config);

/// Schedules that have been proven, by what they follow from: for many plans of one search.
using ProvenSchedules = std::map<std::string, pipeline::Schedule>;

/// Resolves the config and derives the plan. `ranks`: of the job; 0 before a launch, for as many as
/// the grid needs. `stored`: the virtual grid of the checkpoint that the run continues, if any.
/// `device`: what all ranks compute on. `proven`: where to find and leave schedules, or null.
/// Throws: Error(kUsage) that names the setting and a valid value.
[[nodiscard]] Plan prepare(const config::RunConfig& given, std::int64_t ranks,
                           const io::DatasetInfo& train_data, const VirtualGrid& stored,
                           device::DeviceKind device = device::DeviceKind::kCpu,
                           ProvenSchedules* proven = nullptr);

/// The parts of a plan that no grid changes: the config as it is given, with a chosen update rule,
/// the data and the model.
[[nodiscard]] Plan without_grid(const config::RunConfig& given, const io::DatasetInfo& train_data);

/// prepare() for one of many settings that are tried; nothing where they contradict each other.
[[nodiscard]] std::optional<Plan> try_prepare(const config::RunConfig& given, std::int64_t ranks,
                                              const io::DatasetInfo& train_data,
                                              const VirtualGrid& stored, device::DeviceKind device,
                                              ProvenSchedules* proven = nullptr);

/// Gives the plan's targets the units of other statistics, as of the checkpoint whose weights it
/// uses; their own where these are empty. Does nothing where targets are no values.
void set_target_units(Plan& plan, const std::vector<double>& mean,
                      const std::vector<double>& deviation);

/// The config with a grid on which `ranks` ranks evaluate a checkpoint of the virtual grid
/// `stored`: with the config's pipeline and tensor ranks where they divide `ranks`, else with the
/// most replicas that the virtual grid allows. The results are the same on each grid. Throws:
/// Error(kUsage) that names valid numbers of ranks.
[[nodiscard]] config::RunConfig evaluation_config(const config::RunConfig& config,
                                                  std::int64_t ranks, const io::DatasetInfo& data,
                                                  const VirtualGrid& stored);

/// The stages that own and use a tied table; nothing where no parameter is tied.
[[nodiscard]] std::optional<optim::TiedExchange::Stages> tied_stages(const Plan& plan);

/// The stage of each chunk, in layer order.
[[nodiscard]] std::vector<std::int64_t> chunk_stages(const Plan& plan);

/// The stage that computes the loss.
[[nodiscard]] inline std::int64_t loss_stage(const Plan& plan) {
  return plan.training.order.chunks().back().stage;
}

/// Messages and bytes of one microbatch that cross a stage's boundary before `layer`: activations,
/// or their gradients.
[[nodiscard]] Traffic crossing_traffic(const Plan& plan, std::int64_t layer,
                                       const nn::PassShape& pass, bool gradients);

[[nodiscard]] RankPlan rank_plan(const Plan& plan, std::int64_t rank);

/// All messages that the rank sends in a training step, on average. Runs its passes, reduction and
/// update on planned memory.
[[nodiscard]] std::vector<Traffic> traffic_of(const Plan& plan, const RankPlan& rank);

/// Host memory into which a rank copies what it writes into a checkpoint, in bytes. 0 on a CPU for
/// a run whose saves wait for the files.
[[nodiscard]] std::int64_t checkpoint_copy_bytes(const Plan& plan, const RankPlan& rank);

/// The options of this rank's training loader: its microbatches of steps [first_step, total).
[[nodiscard]] io::LoaderOptions training_loader(const Plan& plan, const RankPlan& rank,
                                                std::int64_t first_step);

/// The options of the loader of one repeated step, counted from 1, on the lanes of `rank`.
[[nodiscard]] io::LoaderOptions repeat_loader(const Plan& plan, const RankPlan& rank,
                                              std::int64_t step);

/// The options for one sequential pass over a split in `rounds` steps.
[[nodiscard]] io::LoaderOptions evaluation_loader(const Plan& plan, const RankPlan& rank,
                                                  std::int64_t rounds);

/// Device memory of a rank's samples, without the loader's buffers, in bytes; 0 on a CPU.
[[nodiscard]] std::int64_t device_sample_bytes(device::DeviceKind device,
                                               const io::DatasetInfo& info,
                                               const io::LoaderOptions& options);
/// Pinned host memory from which the samples are copied, in bytes; 0 on a CPU.
[[nodiscard]] std::int64_t pinned_sample_bytes(device::DeviceKind device,
                                               const io::DatasetInfo& info,
                                               const io::LoaderOptions& options);

/// The hashes of config, grid, schedule and buckets, which must agree on all ranks (design law 3).
[[nodiscard]] std::vector<comm::PlanItem> plan_items(const Plan& plan,
                                                     const std::string& config_text);

/// The rank with the largest memory of each stage.
[[nodiscard]] std::vector<RankPlan> largest_rank_plans(const Plan& plan);
/// A rank's planned allocations in host memory, in bytes.
[[nodiscard]] std::int64_t host_bytes(const Plan& plan, const RankPlan& rank);
/// Tables (table_text) of the memory that these ranks take, one of each stage: on its device and,
/// where that is a GPU, on the host.
[[nodiscard]] std::vector<std::vector<std::vector<std::string>>> memory_rows(
    const Plan& plan, const std::vector<RankPlan>& ranks);
/// The same of what they send in a step.
[[nodiscard]] std::vector<std::vector<std::string>> traffic_rows(
    const Plan& plan, const std::vector<RankPlan>& ranks);
/// Tables of the memory that a rank of each stage takes.
[[nodiscard]] std::string memory_text(const Plan& plan);

/// What a grid must be like; 0: nothing in particular.
struct GridLimits {
  std::int64_t lanes = 0;   ///< a multiple of the replicas
  std::int64_t shards = 0;  ///< a multiple of the tensor ranks
  std::int64_t layers = 0;  ///< at least as many as stages
  std::int64_t data = 0;    ///< the only number of replicas, of stages, of tensor ranks
  std::int64_t pipeline = 0;
  std::int64_t tensor = 0;
};
/// The grids of `ranks` ranks: those with the most replicas first, of these those with the fewest
/// tensor ranks. Pre: limits.layers > 0.
[[nodiscard]] std::vector<grid::Grid> grids_of(std::int64_t ranks, const GridLimits& limits);

/// The config with the pipeline stages and tensor ranks of the checkpoint in place of each "auto";
/// 1 in a new run.
[[nodiscard]] config::RunConfig with_stored_stages(config::RunConfig config,
                                                   const VirtualGrid& stored);

/// Whether a run can be launched on `ranks` ranks. `lanes`: of the checkpoint that it continues; 0:
/// the config's, or those that suit the replicas.
[[nodiscard]] bool can_launch(const config::RunConfig& config, std::int64_t ranks,
                              std::int64_t lanes);
/// The nearest such multiples of `step` below and above `ranks`, up to `most`.
[[nodiscard]] std::vector<std::int64_t> nearest_launchable(const config::RunConfig& config,
                                                           std::int64_t ranks, std::int64_t lanes,
                                                           std::int64_t step, std::int64_t most);
/// The nearest such numbers below and above `ranks`, as in "2 or 4".
[[nodiscard]] std::string launchable_ranks(const config::RunConfig& config, std::int64_t ranks,
                                           std::int64_t lanes);

/// As in "2 data x 1 pipeline x 1 tensor; virtual grid: 4 lanes x 1 shards".
[[nodiscard]] std::string grid_line(const Plan& plan);

/// The report of a plan: the model's table, the grid, the schedule with its bubble, the memory of
/// each stage, and the traffic per rank and step.
[[nodiscard]] std::string plan_text(const Plan& plan);

}  // namespace strata::plan
