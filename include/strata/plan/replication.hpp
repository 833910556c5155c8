#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/optim/optimizer.hpp"
#include "strata/optim/outer_optimizer.hpp"
#include "strata/plan/plan.hpp"

namespace strata::plan {

/// How a kind of replication differs from sums in every step.
struct ReplicationTraits {
  /// For the log: a second run has other numbers; empty where it has the same (design law 1).
  std::string irreproducible;
  /// For an error: no step is common to all ranks; empty where one can be forecast.
  std::string unforecastable;
  /// Replicas end each step with the same weights, so that steps can be checked.
  bool replicas_stay_equal = true;
  /// Ranks update the weights that they own; else servers do, which have the optimizer state.
  bool ranks_update = true;
  /// A checkpoint must be complete before training goes on.
  bool saves_at_once = false;
  /// ReplicationPlan::traffic() takes time of its own.
  bool waits = false;
  std::string shorter_waits = {};  ///< the settings that would shorten it

  [[nodiscard]] bool reproducible() const { return irreproducible.empty(); }
};

/// Parts that are fixed when a checkpoint continues the run, and the jobs that train them.
struct RunParts {
  std::int64_t count = 1;
  std::int64_t jobs = 1;
};

/// A kind in messages.
struct ReplicationName {
  std::string name;   ///< optimizer states of a kind of another name do not continue
  std::string state;  ///< what of the optimizer state is particular
};

/// A kind in the report of a plan.
struct ReplicationText {
  std::string grid;
  std::string lines;  ///< further ones
  std::string parts;  ///< of a batch
};

/// What follows from parallel.sync: how the replicas of a run train together. As it is here,
/// gradients are summed over all replicas in every step. Has no state: a kind is one object.
class ReplicationPlan {
 public:
  ReplicationPlan() = default;
  virtual ~ReplicationPlan() = default;
  ReplicationPlan(const ReplicationPlan&) = delete;
  ReplicationPlan& operator=(const ReplicationPlan&) = delete;

  [[nodiscard]] virtual ReplicationTraits traits(const Plan& /*plan*/) const { return {}; }

  // Of a config, before there is a plan. These throw Error(kUsage).

  /// Whether so many replicas make whole parts, or hold whole ones.
  [[nodiscard]] virtual bool fits(const config::RunConfig& /*config*/,
                                  std::int64_t /*replicas*/) const {
    return true;
  }
  /// The grid with its replicas divided.
  [[nodiscard]] virtual grid::Grid divided(const config::RunConfig& /*config*/,
                                           grid::Grid grid) const {
    return grid;
  }
  /// Each part has whole lanes.
  [[nodiscard]] virtual RunParts resolve_parts(const config::RunConfig& /*given*/,
                                               const grid::Grid& /*grid*/,
                                               const VirtualGrid& /*stored*/) const {
    return {};
  }
  /// Whether a lane is a unit of work, so that more of them cost messages and a checkpoint counts
  /// them: a run then has as many as replicas, and keeps them.
  [[nodiscard]] virtual bool lanes_are_work() const { return false; }
  virtual void check_lanes(std::int64_t /*lanes*/, std::int64_t /*parts*/) const {}
  /// Checks the settings, and sets those that follow.
  virtual void resolve(config::RunConfig& /*config*/, const grid::Grid& /*grid*/,
                       std::int64_t /*parts*/, std::int64_t /*total_steps*/) const {}

  // Of a plan.

  /// Sets the parts of a plan with a config and a grid.
  virtual void divide(Plan& /*plan*/) const {}
  /// Throws: Error(kUsage) where a layer needs more than a part.
  virtual void check(const Plan& /*plan*/) const {}
  /// A rank's share of Plan::job_parts.
  [[nodiscard]] virtual grid::Range parts_of(const Plan& /*plan*/,
                                             const grid::Coordinates& /*rank*/) const {
    return {0, 1};
  }
  /// Layers that are averaged together, for all layers.
  [[nodiscard]] virtual std::vector<grid::Range> fragments(const Plan& /*plan*/) const {
    return {};
  }

  /// The loaders that a training rank has at one time.
  [[nodiscard]] virtual std::vector<io::LoaderOptions> loaders(const Plan& plan,
                                                               const RankPlan& rank) const;
  /// How servers divide a rank's parameters.
  [[nodiscard]] virtual std::optional<optim::BucketPlan> server_buckets(
      const Plan& /*plan*/, const nn::ParameterLayout& /*layout*/,
      std::int64_t /*bucket_elements*/) const {
    return std::nullopt;
  }
  /// Allocations beside the rank's state, in host memory.
  [[nodiscard]] virtual std::vector<nn::MemoryItem> memory(const Plan& /*plan*/,
                                                           const RankPlan& /*rank*/) const {
    return {};
  }
  /// Elements of weights and optimizer states that a rank copies for a checkpoint, where it owns
  /// `owned` elements of weights with `states` of their optimizer.
  [[nodiscard]] virtual std::int64_t copied_elements(const Plan& plan, std::int64_t owned,
                                                     std::int64_t states) const;
  /// Gathers of a replica's weights in a step, on average.
  [[nodiscard]] virtual double gathers(const Plan& /*plan*/) const { return 1.0; }
  /// Messages between parts.
  [[nodiscard]] virtual std::optional<Traffic> traffic(const Plan& /*plan*/,
                                                       const RankPlan& /*rank*/) const {
    return std::nullopt;
  }
  /// The names of a parameter's tensors in a checkpoint, beside its weights.
  [[nodiscard]] virtual std::vector<std::string> state_tensors(const Plan& plan,
                                                               const nn::ParameterSpec& spec) const;

  /// Of a run of so many parts.
  [[nodiscard]] virtual ReplicationName name(std::int64_t parts) const;
  [[nodiscard]] virtual ReplicationText text(const Plan& plan) const {
    return {.grid = plan.grid.text(), .lines = "", .parts = ""};
  }
};

[[nodiscard]] const ReplicationPlan& replication_of(config::Sync sync);
[[nodiscard]] inline const ReplicationPlan& replication_of(const Plan& plan) {
  return replication_of(plan.config.parallel.sync);
}

/// Tensors of optimizer state in a rank's RankState.
[[nodiscard]] std::int64_t rank_states(const Plan& plan);

/// The key of Plan::parts in the virtual grid of a checkpoint.
inline constexpr const char* kPartsKey = "islands";
/// What the names of a part's own tensors in a checkpoint begin with, as in "islands/2/". The
/// weights without it are the outer weights.
inline constexpr std::string_view kPartPrefix = "islands/";
[[nodiscard]] std::string part_prefix(std::int64_t part);
/// What waits for traffic() are called in a forecast.
inline constexpr const char* kPartsWait = "waits for the islands group";

// Of parallel.sync = local, where a part is an island:

/// Whether an island's weights differ from the outer weights at the end of a round.
[[nodiscard]] bool islands_differ(const Plan& plan);
/// What the outer optimizer averages on a rank; refers to both.
[[nodiscard]] optim::OuterShare outer_share(const Plan& plan, const RankPlan& rank);
/// Host memory in which a tensor of an island that is not in use lies.
[[nodiscard]] std::int64_t slot_bytes_of(std::int64_t tensor_bytes);
/// slot_bytes_of() summed over an island's weights and optimizer state; 0 with one island a rank,
/// as its weights are always in use.
[[nodiscard]] std::int64_t island_slot_bytes(const Plan& plan, const RankPlan& rank);

// Of parallel.sync = async, where a part is a unit of work, a lane:

/// The ranks that hold the parameters: the first ones.
[[nodiscard]] std::int64_t servers(const Plan& plan);
/// Results of units of each rank that rank 0 has room for, and the words of one.
inline constexpr std::int64_t kUnitRing = 64;
inline constexpr std::int64_t kUnitRingWords = 3;
/// The words of a rank by which workers deal out units, of 8 bytes.
[[nodiscard]] std::int64_t async_control_words(const Plan& plan, std::int64_t rank);
/// The options of the loader of one unit, counted from 0.
[[nodiscard]] io::LoaderOptions unit_loader(const Plan& plan, const RankPlan& rank,
                                            std::int64_t unit);
/// The index of each of its microbatches' first sample in the global batch.
[[nodiscard]] std::vector<std::int64_t> unit_offsets(const Plan& plan, std::int64_t unit);

}  // namespace strata::plan
