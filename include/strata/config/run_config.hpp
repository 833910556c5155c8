#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/switch.hpp"
#include "strata/device/device.hpp"
#include "strata/grid/grid.hpp"
#include "strata/io/loader.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/nn/backward_order.hpp"
#include "strata/nn/model.hpp"
#include "strata/nn/transformer.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/instruction_set.hpp"
#include "strata/ops/packing.hpp"
#include "strata/optim/learning_rate.hpp"
#include "strata/optim/optimizer.hpp"
#include "strata/optim/parameter_server.hpp"
#include "strata/pipeline/schedule.hpp"

namespace strata::config {

/// How a run treats existing checkpoints in its directory.
enum class Resume {
  kNever,  ///< rejects a directory that holds a run
  kAuto,   ///< continues from the newest valid checkpoint; starts a new run where there is none
  kMust    ///< as auto, but never starts a new run
};

constexpr auto enum_names(Resume) {
  return names_in_order("never", "auto", "must");
}

/// The transport of tensors in GPU memory.
enum class Transport {
  kAuto,  ///< NCCL where every rank has it and no two ranks share a GPU, else as kMpi
  kNccl,
  kMpi  ///< through pinned host memory
};

constexpr auto enum_names(Transport) {
  return names_in_order("auto", "nccl", "mpi");
}
/// What a run does at a step whose loss or gradient norm is not finite.
enum class Nonfinite {
  kStop,   ///< ends
  kSkip,   ///< leaves the update out
  kRepeat  ///< computes the step once more and compares the bits
};

constexpr auto enum_names(Nonfinite) {
  return names_in_order("stop", "skip", "repeat");
}

using strata::Switch;

/// The value of evaluations by which one checkpoint is the best.
enum class Best { kOff, kLoss, kAccuracy };

constexpr auto enum_names(Best) {
  return names_in_order("off", "loss", "accuracy");
}

/// What training makes likelier.
enum class Objective {
  kTargets,  ///< each target
  kDpo       ///< the preferred one of two answers (direct preference optimization)
};

constexpr auto enum_names(Objective) {
  return names_in_order("targets", "dpo");
}

/// The dtype of one shard's contribution to a sum over shards.
enum class ShardSums { kFloat32, kBfloat16 };

constexpr auto enum_names(ShardSums) {
  return names_in_order("float32", "bfloat16");
}

/// How the data axis exchanges.
enum class Sync {
  kStep,   ///< gradients are summed in every step
  kLocal,  ///< islands train local.steps steps by themselves; then their weights are averaged
  kAsync   ///< workers fetch weights and push gradients at their own pace
};

constexpr auto enum_names(Sync) {
  return names_in_order("step", "local", "async");
}

/// Leaves a number open whose 0 is a choice.
inline constexpr int kOpen = -1;

/// Steps [first, last], from 1.
struct StepRange {
  std::int64_t first = 1;
  std::int64_t last = 1;

  [[nodiscard]] bool holds(std::int64_t step) const { return first <= step && step <= last; }
};

/// All settings of the config file and the command line. 0, kOpen, kAuto and, of optional ones,
/// nothing leave a value to prepare(), which returns the resolved config in its Plan.
struct RunConfig {
  struct {
    std::vector<std::string> layers;
    nn::TransformerOptions transformer;
    std::optional<nn::LossKind> loss;
    Switch sync_batch_norm = Switch::kOff;
  } model;
  struct {
    nn::AdapterOptions adapters;
    std::string train;  // patterns of parameters that are trained beside adapters
  } lora;
  struct {
    std::string train;
    std::string test;
    io::Normalise normalise = io::Normalise::kAuto;
    io::TargetUnits targets = io::TargetUnits::kAuto;
    io::Sampling sampling = io::Sampling::kBlocks;
    io::Packing packing = io::Packing::kBlocks;
    io::MixtureRules mixture;
    Switch accept_change = Switch::kOff;
    io::Augmentation augmentation;
    std::int64_t reader_threads = 1;
  } data;
  struct {
    std::int64_t global = 128;
    std::int64_t micro = 0;
  } batch;
  struct {
    std::int64_t data = 0;
    std::int64_t pipeline = 1;
    std::int64_t tensor = 1;
    /// Whether tensor ranks share token rows between split layers.
    std::optional<Switch> sequence;
    /// Nothing: searched for (parallel.schedule = auto).
    std::optional<pipeline::ScheduleKind> schedule = pipeline::ScheduleKind::k1f1b;
    std::string schedule_file;     // of ScheduleKind::kFile
    std::int64_t activations = 0;  // for a search; 0: one for each stage
    std::int64_t chunks = 0;       // 0: as many as the schedule needs
    std::optional<nn::BackwardOrder> backward;
    std::string split = "auto";
    double bucket_mib = 0.0;      // 0: by the device
    std::int64_t node_ranks = 0;  // 0: as launched
    std::int64_t islands = 0;     // 0: one for each replica
    std::string island_of;        // the directory where islands that are jobs meet; empty: one job
    std::int64_t island = 0;      // this job's, where island_of is set
    Sync sync = Sync::kStep;

    /// Of all replicas, which parallel.sync may divide into islands; 0 where an axis is open.
    [[nodiscard]] grid::Grid grid() const {
      return {.data = data, .pipeline = pipeline, .tensor = tensor};
    }
  } parallel;
  /// Of parallel.sync = local.
  struct {
    std::int64_t steps = 50;
    double outer_rate = 0.7;
    double outer_momentum = 0.9;
    std::int64_t fragments = 1;
    std::int64_t delay = 0;
    double mix = 0.0;
    ops::Packing exchange = ops::Packing::kFull;
    double deadline_seconds = 600.0;
    std::string record;  // the directory of rounds to repeat; empty: none
  } local;
  struct {
    std::int64_t lanes = 0;
    std::int64_t shards = 0;
    std::int64_t row_pieces = 1;
    ShardSums shard_sums = ShardSums::kFloat32;
    std::int64_t loss_pieces = 0;
    DType dtype = DType::kFloat32;
    comm::Summation mode = comm::Summation::kInvariant;
    Switch tf32 = Switch::kOff;
    Switch split_k = Switch::kOff;
    ops::LibraryKernels attention = ops::LibraryKernels::kLibrary;
    ops::InstructionSet isa = ops::InstructionSet::kNative;
  } numerics;
  /// Of parallel.sync = async.
  struct {
    std::int64_t servers = 0;  // 0: every rank holds a share
    std::int64_t ahead = 0;    // 0: no bound
    optim::AsyncOptions options;
  } async;
  struct {
    std::optional<optim::OptimizerKind> kind;  // options.kind follows it
    optim::OptimizerOptions options;
    double clip_norm = 0.0;
    std::string frozen;  // patterns of parameter names
  } optimizer;
  /// The peak goes by the optimizer, the warm-up by the length of the run; decay 0: the last step.
  optim::LearningRateOptions schedule{.peak = kOpen, .warmup_steps = kOpen, .decay_steps = 0};
  struct {
    std::int64_t steps = 0;
    double epochs = 0.0;
    std::int64_t evaluate_every = 0;
    std::int64_t evaluate_batches = 0;
    std::int64_t patience = 0;  // 0: off
    Objective objective = Objective::kTargets;
    double dpo_beta = 0.1;
    double label_smoothing = 0.0;
    double z_loss = 0.0;
    nn::Recompute recompute = nn::Recompute::kNone;
    std::int64_t log_every = 0;
    std::int64_t metrics_every = 0;  // 0: rarer in longer runs
    Nonfinite nonfinite = Nonfinite::kStop;
    Switch check = Switch::kOn;
    std::int64_t check_every = 0;
    std::optional<std::int64_t> repeat_every;  // nothing: auto
  } train;
  struct {
    std::int64_t every = 0;
    double minutes = 30.0;
    std::int64_t keep = 3;
    std::int64_t keep_every = 0;
    Best best = Best::kOff;
    Switch background = Switch::kOn;
    std::string init;         // whose weights a new run starts from; empty: none
    std::string init_except;  // patterns of parameter names
    Switch drop_state = Switch::kOff;
  } checkpoint;
  struct {
    std::string dir;  // empty: read_config() names it after the config file
    std::uint64_t seed = 1;
    std::int64_t threads = 0;
    std::optional<device::DeviceKind> device;
    Transport transport = Transport::kAuto;
    Resume resume = Resume::kNever;
    double timeout_seconds = 600.0;
    double time_limit_minutes = 0.0;
    std::optional<StepRange> timeline;      // nothing: off
    std::optional<std::int64_t> sniff = 0;  // nothing: off; 0: at the start alone
    double peak_tflops = 0.0;
    std::string machine;  // of Forecaster; empty: none
    Switch cuda_graphs = Switch::kOff;
    Switch tensorboard = Switch::kOff;
    std::int64_t tensorboard_histograms = 0;
    std::int64_t tensorboard_text = 0;
    std::int64_t receipts = 0;  // steps between digests; 0: off
  } run;
};

/// The value of parallel.schedule, as in "1f1b", "auto" or "file:made.csv".
[[nodiscard]] std::string schedule_name(const RunConfig& config);

}  // namespace strata::config
