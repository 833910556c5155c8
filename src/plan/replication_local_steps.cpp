#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/step_trace.hpp"

#include "replication_kinds.hpp"
#include "resolve.hpp"

namespace strata::plan {
namespace {

bool are_jobs(const config::RunConfig& config) {
  return !config.parallel.island_of.empty();
}

/// Islands that the ranks of one job hold; 0: as many as there are replicas.
std::int64_t islands_of_job(const config::RunConfig& config) {
  return are_jobs(config) ? 1 : config.parallel.islands;
}

/// Saves, evaluations, histograms and the end are ends of rounds.
void check_rounds(const config::RunConfig& config, std::int64_t total_steps) {
  const auto& local = config.local;
  const std::int64_t round = local.steps;
  if (round > total_steps) {
    fail(ExitCode::kUsage,
         "local.steps is {}, but the run has {} steps, so the islands would never meet; give at "
         "most {}",
         round, total_steps, total_steps);
  }
  const auto require_rounds = [&](const char* key, std::int64_t steps) {
    if (steps % round != 0) {
      const std::int64_t below = steps / round * round;
      fail(ExitCode::kUsage,
           "{} is {}, no multiple of local.steps = {}: islands meet only at the end of a round; "
           "give {}",
           key, steps, round,
           below > 0 ? fmt::format("{} or {}", below, below + round) : std::to_string(round));
    }
  };
  require_rounds(config.train.steps > 0 ? "train.steps" : "the number of steps of train.epochs",
                 total_steps);
  require_rounds("train.evaluate_every", config.train.evaluate_every);
  require_rounds("checkpoint.every", config.checkpoint.every);
  require_rounds("checkpoint.keep_every", config.checkpoint.keep_every);
  require_rounds("run.tensorboard_histograms", config.run.tensorboard_histograms);
  const std::int64_t gap = round / local.fragments;
  if (gap == 0 || local.delay >= gap) {
    fail(ExitCode::kUsage,
         "local.delay is {} and local.fragments {} in rounds of local.steps = {}: a fragment is "
         "averaged every {} steps and must arrive before the next begins; lower local.delay or "
         "local.fragments, or lengthen the rounds",
         local.delay, local.fragments, round, gap);
  }
  if (config.parallel.island_of.empty() && local.record.empty()) {
    return;
  }
  if (local.fragments > 1 || local.delay > 0 || local.mix > 0.0 ||
      local.exchange != ops::Packing::kFull) {
    fail(ExitCode::kUsage,
         "islands that are jobs (parallel.island_of, local.record) average all weights at the end "
         "of a round, in full; leave local.fragments, local.delay, local.mix and local.exchange "
         "out");
  }
  if (!config.parallel.island_of.empty() && !local.record.empty()) {
    fail(ExitCode::kUsage,
         "parallel.island_of and local.record are both set; a record is repeated by one job, so "
         "leave one of them out");
  }
}

/// Islands of replicas train local.steps steps by themselves; then their weights are averaged.
class LocalSteps final : public ReplicationPlan {
 public:
  [[nodiscard]] ReplicationTraits traits(const Plan& plan) const override {
    return {
        .irreproducible = "",
        .unforecastable = "",
        .replicas_stay_equal = false,
        // Islands that are jobs must not go back by more than the round that they have not saved.
        .saves_at_once = are_jobs(plan.config),
        // Not where averages are under way beside further steps.
        .waits = plan.config.local.delay == 0,
        .shorter_waits = "a larger local.steps, or local.exchange = int4"};
  }

  [[nodiscard]] bool fits(const config::RunConfig& config, std::int64_t replicas) const override {
    const std::int64_t islands = islands_of_job(config);
    return islands == 0 || islands % replicas == 0 || replicas % islands == 0;
  }
  [[nodiscard]] grid::Grid divided(const config::RunConfig& config,
                                   grid::Grid grid) const override {
    const std::int64_t islands = islands_of_job(config);
    if (!fits(config, grid.data)) {
      fail(ExitCode::kUsage,
           "parallel.islands is {} and there are {} replicas, of which no whole number makes an "
           "island or holds several; launch replicas that divide {} or are a multiple of it, or, "
           "in a new run, set parallel.islands to 0: one for each replica",
           islands, grid.data, islands);
    }
    grid.islands = islands == 0 ? grid.data : std::min(islands, grid.data);
    grid.data /= grid.islands;
    return grid;
  }
  [[nodiscard]] RunParts resolve_parts(const config::RunConfig& given, const grid::Grid& grid,
                                       const VirtualGrid& stored) const override {
    const auto& parallel = given.parallel;
    if (given.numerics.mode == comm::Summation::kLibrary) {
      fail(ExitCode::kUsage,
           "parallel.sync is local and numerics.mode is fast; islands are averaged in a fixed "
           "order, "
           "so set numerics.mode to invariant");
    }
    const bool drops = given.checkpoint.drop_state == config::Switch::kOn;
    const std::int64_t islands =
        resolve_value("parallel.islands", parallel.islands, drops ? 0 : stored.parts,
                      parallel.island_of.empty() ? grid.replicas() : 0);
    if (!parallel.island_of.empty() && (islands < 2 || parallel.island >= islands)) {
      fail(
          ExitCode::kUsage,
          "parallel.island_of is set, with parallel.islands = {} and parallel.island = {}; say how "
          "many jobs meet there, at least 2, and which of them this is, from 0",
          islands, parallel.island);
    }
    return {.count = islands, .jobs = are_jobs(given) ? islands : 1};
  }
  void check_lanes(std::int64_t lanes, std::int64_t parts) const override {
    if (lanes % parts != 0) {
      fail(ExitCode::kUsage,
           "numerics.lanes is {}, which parallel.islands = {} does not divide: an island has whole "
           "lanes; use a multiple of {}",
           lanes, parts, parts);
    }
  }
  void resolve(config::RunConfig& config, const grid::Grid& /*grid*/, std::int64_t parts,
               std::int64_t total_steps) const override {
    config.parallel.islands = parts;
    check_rounds(config, total_steps);
    if (are_jobs(config)) {
      // The state after each round that has this island's difference can be had again.
      config.checkpoint.every = config.local.steps;
    }
  }

  void divide(Plan& plan) const override {
    const auto& parallel = plan.config.parallel;
    plan.parts = parallel.islands;
    plan.parts_per_rank = are_jobs(plan.config) ? 1 : plan.parts / plan.grid.islands;
    plan.job_parts = are_jobs(plan.config) ? grid::Range{parallel.island, parallel.island + 1}
                                           : grid::Range{0, plan.parts};
  }

  [[nodiscard]] grid::Range parts_of(const Plan& plan,
                                     const grid::Coordinates& rank) const override {
    const std::int64_t first = plan.job_parts.begin + rank.islands * plan.parts_per_rank;
    return {first, first + plan.parts_per_rank};
  }

  /// About as many parameters each.
  [[nodiscard]] std::vector<grid::Range> fragments(const Plan& plan) const override {
    const nn::Model& model = *plan.model;
    const std::int64_t count = plan.config.local.fragments;
    std::vector<double> parameters(static_cast<std::size_t>(model.layer_count()));
    for (const nn::ParameterSpec& spec : model.parameters()) {
      if (spec.ownership == nn::Ownership::kOwned) {
        parameters[static_cast<std::size_t>(spec.layer)] += static_cast<double>(spec.shape.count());
      }
    }
    if (count > model.layer_count()) {
      fail(ExitCode::kUsage,
           "local.fragments is {}, but the model has {} layers, which are not divided; give at "
           "most {}",
           count, model.layer_count(), model.layer_count());
    }
    return grid::balanced_split(parameters, count).stages;
  }

  /// What islands need beside the one in use.
  [[nodiscard]] std::vector<nn::MemoryItem> memory(const Plan& plan,
                                                   const RankPlan& rank) const override {
    std::vector<nn::MemoryItem> memory =
        optim::OuterOptimizer::memory(plan.grid.islands, outer_share(plan, rank));
    memory.push_back({"islands not in use", plan.parts_per_rank * island_slot_bytes(plan, rank)});
    return memory;
  }

  [[nodiscard]] std::int64_t copied_elements(const Plan& plan, std::int64_t owned,
                                             std::int64_t states) const override {
    const auto& local = plan.config.local;
    const std::int64_t errors = local.exchange != ops::Packing::kFull ? 1 : 0;
    const std::int64_t island = states + (errors + (islands_differ(plan) ? 1 : 0)) * owned;
    const std::int64_t outer = 1 + errors + (local.outer_momentum != 0.0 ? 1 : 0);
    return plan.parts_per_rank * island + outer * owned;
  }

  /// An island gathers its weights again when a fragment is averaged.
  [[nodiscard]] double gathers(const Plan& plan) const override {
    const auto& local = plan.config.local;
    return 1.0 + static_cast<double>(local.fragments) / static_cast<double>(local.steps);
  }

  /// Of a round in which all islands exchange each fragment.
  [[nodiscard]] std::optional<Traffic> traffic(const Plan& plan,
                                               const RankPlan& rank) const override {
    comm::Trace trace;
    comm::PlannedGroup group(
        trace, group_site(plan, rank.coordinates, grid::Axis::kIslands, plan.grid.ranks()));
    optim::OuterOptimizer outer(group, outer_share(plan, rank), ops::Context::planned(trace));
    std::vector<std::int64_t> islands(static_cast<std::size_t>(plan.parts));
    std::iota(islands.begin(), islands.end(), 0);
    for (std::size_t f = 0; f < plan.fragments.size(); ++f) {
      outer.start(f, islands);
      outer.finish();
    }
    const comm::TracedMessages round = comm::sent(trace.take(), grid::Axis::kIslands);
    const auto steps = static_cast<double>(plan.config.local.steps);
    return Traffic{"differences and averages, between islands",
                   static_cast<double>(round.messages) / steps, round.bytes / steps};
  }

  [[nodiscard]] std::vector<std::string> state_tensors(
      const Plan& plan, const nn::ParameterSpec& spec) const override {
    std::vector<std::string> names;
    const bool averaged = nn::has_gradient(spec);
    const bool rounds = plan.config.local.exchange != ops::Packing::kFull;
    if (averaged && plan.config.local.outer_momentum != 0.0) {
      names.push_back(outer_name(kOuterPrefix, kOuterMomentum, spec));
    }
    if (averaged && rounds) {
      names.push_back(outer_name(kOuterPrefix, kPackingError, spec));
    }
    for (std::int64_t island = plan.job_parts.begin; island < plan.job_parts.end; ++island) {
      const std::string prefix = part_prefix(island);
      const std::vector<std::string> states =
          state_names(spec, plan.config.optimizer.options, prefix);
      names.insert(names.end(), states.begin(), states.end());
      if (averaged && islands_differ(plan)) {
        names.push_back(weight_name(spec, prefix));
      }
      if (averaged && rounds) {
        names.push_back(outer_name(prefix, kPackingError, spec));
      }
    }
    return names;
  }

  [[nodiscard]] ReplicationName name(std::int64_t parts) const override {
    return {.name = fmt::format("local with {} islands", parts),
            .state = ", that of its islands and the outer momentum"};
  }
  [[nodiscard]] ReplicationText text(const Plan& plan) const override {
    const auto& local = plan.config.local;
    const std::string where =
        are_jobs(plan.config)
            ? fmt::format("jobs of their own, of which this is {}", plan.config.parallel.island)
            : fmt::format("{} on a rank", plan.parts_per_rank);
    const std::string lines = fmt::format(
        "islands: {}, {}; averaged in rounds of {} steps, in {} fragment{}, {}{}\n", plan.parts,
        where, local.steps, local.fragments, local.fragments == 1 ? "" : "s",
        local.exchange == ops::Packing::kFull ? "in full"
                                              : fmt::format("as {}", name_of(local.exchange)),
        local.delay == 0 ? ""
                         : fmt::format("; an average arrives after {} further step{}", local.delay,
                                       local.delay == 1 ? "" : "s"));
    return {.grid = plan.grid.text(),
            .lines = lines,
            .parts = plan.parts == 1 ? "" : fmt::format("{} islands x ", plan.parts)};
  }
};

}  // namespace

const ReplicationPlan& local_steps() {
  static const LocalSteps kKind;
  return kKind;
}

bool islands_differ(const Plan& plan) {
  return std::ssize(plan.fragments) > 1 || plan.config.local.mix > 0.0;
}

optim::OuterShare outer_share(const Plan& plan, const RankPlan& rank) {
  const auto& local = plan.config.local;
  return {.options = {.rate = local.outer_rate,
                      .momentum = local.outer_momentum,
                      .exchange = local.exchange},
          .islands = {.count = plan.parts, .own = rank.own_parts},
          .owned = rank.owned(),
          .fragments = plan.fragments,
          .dtype = compute_dtype(plan.config.numerics.dtype)};
}

std::int64_t slot_bytes_of(std::int64_t tensor_bytes) {
  constexpr std::int64_t kAlignment = device::Buffer::kAlignmentBytes;
  return (tensor_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t island_slot_bytes(const Plan& plan, const RankPlan& rank) {
  if (plan.parts_per_rank == 1 && !islands_differ(plan) && !are_jobs(plan.config)) {
    return 0;
  }
  const DType dtype = plan.config.numerics.dtype;
  const optim::Ownership owned = rank.owned();
  const std::int64_t full = size_bytes(compute_dtype(dtype));
  const std::int64_t masters = dtype == compute_dtype(dtype) ? 0 : owned.elements() * full;
  return rank_states(plan) * slot_bytes_of(owned.state_elements() * full) + slot_bytes_of(masters) +
         slot_bytes_of(rank.layout.weight_elements * size_bytes(dtype));
}

}  // namespace strata::plan
