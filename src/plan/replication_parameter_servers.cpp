#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/optim/parameter_server.hpp"

#include "replication_kinds.hpp"

namespace strata::plan {
namespace {

/// Workers fetch weights from servers and push gradients, each at its own pace. The ranks are the
/// islands axis of the grid.
class ParameterServers final : public ReplicationPlan {
 public:
  [[nodiscard]] ReplicationTraits traits(const Plan& /*plan*/) const override {
    return {.irreproducible =
                "asynchronous workers: the numbers of this run depend on the speed of its ranks, "
                "and a second run gives others",
            .unforecastable =
                "parallel.sync is async: its workers have no step in common, so strata plan cannot "
                "predict one; set it to step to plan its memory and speed",
            .replicas_stay_equal = false,
            .ranks_update = false,
            .saves_at_once = true};  // the state changes while it is written
  }

  [[nodiscard]] grid::Grid divided(const config::RunConfig& /*config*/,
                                   grid::Grid grid) const override {
    grid.islands = grid.data;
    grid.data = 1;
    return grid;
  }
  [[nodiscard]] bool lanes_are_work() const override { return true; }
  void resolve(config::RunConfig& config, const grid::Grid& grid, std::int64_t /*parts*/,
               std::int64_t /*total_steps*/) const override {
    if (grid.pipeline > 1 || grid.tensor > 1) {
      fail(ExitCode::kUsage,
           "parallel.sync is async and a replica has {} stages of {} tensor ranks, whose weights "
           "would be of different ages; set parallel.pipeline and parallel.tensor to 1",
           grid.pipeline, grid.tensor);
    }
    if (config.numerics.mode == comm::Summation::kLibrary) {
      fail(
          ExitCode::kUsage,
          "parallel.sync is async, which sums no gradients over ranks, so numerics.mode = fast has "
          "no effect; leave it out");
    }
    if (config.async.servers >= grid.islands) {
      fail(
          ExitCode::kUsage,
          "async.servers is {}, but there are {} ranks, of which at least one has to compute; give "
          "at most {}, or 0: every rank holds a share",
          config.async.servers, grid.islands, grid.islands - 1);
    }
    if (config.train.nonfinite == config::Nonfinite::kRepeat) {
      fail(
          ExitCode::kUsage,
          "train.nonfinite is repeat, but asynchronous steps cannot be repeated; set it to stop or "
          "skip");
    }
    if (config.checkpoint.keep_every > 0) {
      fail(
          ExitCode::kUsage,
          "checkpoint.keep_every is {}, but a checkpoint of asynchronous workers may be of a later "
          "step than the one that makes it due; leave it out and raise checkpoint.keep",
          config.checkpoint.keep_every);
    }
    if (config.run.cuda_graphs == config::Switch::kOn) {
      fail(ExitCode::kUsage,
           "run.cuda_graphs is on, but the samples of asynchronous units lie at other addresses "
           "each "
           "time; set it to off");
    }
    if (config.run.tensorboard_histograms > 0 || config.run.timeline) {
      fail(ExitCode::kUsage,
           "run.tensorboard_histograms and run.timeline record what all ranks do in one step, and "
           "asynchronous workers have no common steps; leave them out");
    }
  }

  void divide(Plan& plan) const override {
    plan.parts = plan.config.numerics.lanes;
    plan.parts_per_rank = plan.parts / plan.grid.islands;
    plan.job_parts = {0, plan.parts};
  }
  [[nodiscard]] grid::Range parts_of(const Plan& plan,
                                     const grid::Coordinates& rank) const override {
    return {rank.islands * plan.parts_per_rank, (rank.islands + 1) * plan.parts_per_rank};
  }
  void check(const Plan& plan) const override {
    if (plan.model->joins_lanes()) {
      fail(ExitCode::kUsage,
           "parallel.sync is async, but a batch_norm layer takes statistics over all lanes "
           "together; set model.sync_batch_norm to off");
    }
  }

  /// A worker reads the next unit while it computes one.
  [[nodiscard]] std::vector<io::LoaderOptions> loaders(const Plan& plan,
                                                       const RankPlan& rank) const override {
    return {2, unit_loader(plan, rank, 0)};
  }
  [[nodiscard]] std::optional<optim::BucketPlan> server_buckets(
      const Plan& plan, const nn::ParameterLayout& layout,
      std::int64_t bucket_elements) const override {
    return optim::BucketPlan(layout, servers(plan), bucket_elements);
  }
  /// The share of the parameters, and the messages.
  [[nodiscard]] std::vector<nn::MemoryItem> memory(const Plan& plan,
                                                   const RankPlan& rank) const override {
    std::vector<nn::MemoryItem> memory = optim::ParameterServer::memory(
        plan.config.optimizer.options, rank.layout, *rank.server_buckets, servers(plan),
        plan.grid.ranks(), rank.coordinates.islands, compute_dtype(plan.config.numerics.dtype));
    memory.push_back({"window of units", 8 * async_control_words(plan, rank.coordinates.islands)});
    return memory;
  }
  /// None: a server's memory is on the host and does not change meanwhile.
  [[nodiscard]] std::int64_t copied_elements(const Plan& /*plan*/, std::int64_t /*owned*/,
                                             std::int64_t /*states*/) const override {
    return 0;
  }

  [[nodiscard]] ReplicationName name(std::int64_t /*parts*/) const override {
    return {.name = std::string(name_of(config::Sync::kAsync)), .state = ""};
  }
  [[nodiscard]] ReplicationText text(const Plan& plan) const override {
    return {.grid = grid::Grid{.data = plan.grid.replicas()}.text(),
            .lines = fmt::format("asynchronous: {} servers, {} workers; a worker computes units of "
                                 "{} samples\n",
                                 servers(plan), plan.grid.replicas() - plan.config.async.servers,
                                 part_batch(plan)),
            .parts = plan.parts == 1 ? "" : fmt::format("{} units x ", plan.parts)};
  }
};

}  // namespace

const ReplicationPlan& parameter_servers() {
  static const ParameterServers kKind;
  return kKind;
}

std::int64_t servers(const Plan& plan) {
  const std::int64_t given = plan.config.async.servers;
  return given > 0 ? given : plan.grid.islands;
}

std::int64_t async_control_words(const Plan& plan, std::int64_t rank) {
  constexpr std::int64_t kShared = 2;  // the claims and the cuts
  // Its requests, its units done, those whose results are taken, and a ring of results.
  constexpr std::int64_t kOfRank = 3 + kUnitRing * kUnitRingWords;
  return rank == 0 ? kShared + kOfRank * plan.grid.ranks() : 1;
}

std::vector<std::int64_t> unit_offsets(const Plan& plan, std::int64_t unit) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t m = 0; m < plan.microbatches; ++m) {
    offsets.push_back((unit % plan.parts * plan.microbatches + m) * plan.config.batch.micro);
  }
  return offsets;
}

io::LoaderOptions unit_loader(const Plan& plan, const RankPlan& rank, std::int64_t unit) {
  io::LoaderOptions options = training_loader(plan, rank, unit / plan.parts);
  options.offsets = unit_offsets(plan, unit);
  options.steps = 1;
  return options;
}

}  // namespace strata::plan
