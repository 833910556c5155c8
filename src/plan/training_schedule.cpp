#include "training_schedule.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/text_file.hpp"
#include "strata/nn/layer_trace.hpp"
#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/pipeline/schedule_file.hpp"
#include "strata/pipeline/search.hpp"

namespace strata::plan {
namespace {

using pipeline::ActionKind;

/// Rejects cells that training does not run.
void check_cells(const pipeline::ScheduleFile& file, const std::string& path) {
  for (std::size_t rank = 0; rank < file.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < file.ranks[rank].size(); ++i) {
      const pipeline::FileCell& cell = file.ranks[rank][i];
      const auto refuse = [&](const std::string& because) {
        fail(ExitCode::kUsage, "{}:{}: cell {} ({}): {}", path, rank + 1, i + 1, text_of(cell),
             because);
      };
      for (const pipeline::FileAction& action : cell.actions) {
        if (is_sharding(action.kind)) {
          refuse(fmt::format("training does not run {}; leave it out", name_of(action.kind)));
        }
      }
    }
  }
}

/// Rejects passes of one kind that do not ascend by microbatch: weight gradients because the bits
/// depend on their order (design law 1), the others because a stage reuses their memory in order.
void check_order(const pipeline::ScheduleFile& file, const pipeline::Schedule& schedule,
                 const std::string& path) {
  for (std::int64_t stage = 0; stage < schedule.stages; ++stage) {
    for (const ActionKind kind :
         {ActionKind::kBackwardWeight, ActionKind::kBackwardInput, ActionKind::kForward,
          ActionKind::kSendActivation, ActionKind::kSendGradient, ActionKind::kReceiveActivation,
          ActionKind::kReceiveGradient}) {
      std::vector<std::int64_t> last_of(static_cast<std::size_t>(schedule.chunks), -1);
      for (const pipeline::Action& action :
           schedule.stage_actions[static_cast<std::size_t>(stage)]) {
        if (action.kind != kind) {
          continue;
        }
        std::int64_t& last = last_of[static_cast<std::size_t>(action.chunk)];
        if (action.microbatch < last) {
          fail(ExitCode::kUsage,
               "{}: {} follows that of microbatch {}; in training the actions of each kind ascend "
               "by microbatch in each chunk, so reorder them",
               place_text(file, schedule, {.stage = stage, .action = action}, path),
               text_of(action), last);
        }
        last = action.microbatch;
      }
    }
  }
}

pipeline::Schedule schedule_from_file(const std::string& path, const pipeline::ScheduleSize& size) {
  const pipeline::ScheduleFile file = pipeline::parse_schedule(
      io::read_input(path, pipeline::kMostFileBytes, ExitCode::kUsage), path);
  const std::int64_t ranks = std::ssize(file.ranks);
  if (ranks != size.stages) {
    fail(ExitCode::kUsage,
         "{} is a schedule of {} rank{}, but parallel.pipeline is {}; give a file of {}, or set "
         "parallel.pipeline to {}",
         path, ranks, ranks == 1 ? "" : "s", size.stages, size.stages, ranks);
  }
  check_cells(file, path);
  pipeline::Schedule schedule = pipeline::schedule_of(file, path);
  if (schedule.microbatches != size.microbatches) {
    fail(ExitCode::kUsage,
         "{} is a schedule of {} microbatch{}, but each rank has {} in a step; give a file of {}, "
         "or change batch.global, batch.micro or parallel.data",
         path, schedule.microbatches, schedule.microbatches == 1 ? "" : "es", size.microbatches,
         size.microbatches);
  }
  if (schedule.chunks > pipeline::kMostChunks) {
    fail(ExitCode::kUsage, "{} has {} stages on a line; training runs at most {} a rank", path,
         schedule.chunks, pipeline::kMostChunks);
  }
  const pipeline::CheckReport report = pipeline::check(schedule);
  if (!report.passed()) {
    fail(ExitCode::kUsage, "{}; strata schedule check lists all that is wrong",
         pipeline::file_errors(file, schedule, report, path).front());
  }
  if (std::ranges::find(schedule.stage_actions.front(), ActionKind::kBackwardWeight,
                        &pipeline::Action::kind) == schedule.stage_actions.front().end()) {
    fail(ExitCode::kUsage, "{} has no backward passes, so it cannot train; give one that has them",
         path);
  }
  check_order(file, schedule, path);
  return schedule;
}

/// The schedule, with early receives where it would deadlock without.
pipeline::Schedule for_device(const config::RunConfig& config, pipeline::Schedule schedule,
                              device::DeviceKind device) {
  pipeline::require_sound(schedule);
  if (!pipeline::training_hang(schedule, device).empty()) {
    schedule = pipeline::with_early_receives(schedule);
    pipeline::require_sound(schedule);
  }
  const std::string hang = pipeline::training_hang(schedule, device);
  if (!hang.empty()) {
    fail(ExitCode::kUsage,
         "parallel.schedule = {} would hang in training: {}; choose another schedule",
         config::schedule_name(config), hang);
  }
  return schedule;
}

/// Whether both gradients of a layer are computed together, with several stages.
bool computes_both(const config::RunConfig& config) {
  return config.train.recompute != nn::Recompute::kNone || config.numerics.loss_pieces > 1 ||
         config.parallel.backward == nn::BackwardOrder::kFused;
}

/// The schedule with each weight gradient right behind its input gradient.
pipeline::Schedule with_weights_at_once(pipeline::Schedule schedule) {
  for (std::vector<pipeline::Action>& actions : schedule.stage_actions) {
    std::vector<pipeline::Action> computed;
    for (pipeline::Action action : actions) {
      if (action.kind != ActionKind::kForward && action.kind != ActionKind::kBackwardInput) {
        continue;
      }
      computed.push_back(action);
      if (action.kind == ActionKind::kBackwardInput) {
        action.kind = ActionKind::kBackwardWeight;
        computed.push_back(action);
      }
    }
    actions = std::move(computed);
  }
  return pipeline::insert_communication(std::move(schedule));
}

/// Rejects more chunks than layers.
void check_layers(const config::RunConfig& config, const nn::Model& model, std::int64_t stages,
                  std::int64_t chunks) {
  if (chunks > model.layer_count() && chunks > stages) {
    fail(ExitCode::kUsage,
         "parallel.schedule = {} has {} chunks on {} stages, but the model has {} layers; a chunk "
         "holds at least one, so use fewer stages or chunks, or parallel.schedule = 1f1b",
         config::schedule_name(config), chunks, stages, model.layer_count());
  }
}

/// Relative times of each stage's chunks. In dense layers forward, input gradient and weight
/// gradient have about equal costs; a fused backward pass is the input gradient alone.
pipeline::StageCosts costs_of(const config::RunConfig& config, const nn::Model& model,
                              std::span<const double> layers, const pipeline::ChunkOrder& order) {
  const grid::StageSplit split =
      nn::split_model(model, layers, std::ssize(order.chunks()), config.parallel.split);
  const bool recomputes = config.train.recompute != nn::Recompute::kNone;
  const bool fused = computes_both(config);
  pipeline::StageCosts costs;
  for (std::size_t i = 0; i < split.stages.size(); ++i) {
    const double cost = std::accumulate(layers.begin() + split.stages[i].begin,
                                        layers.begin() + split.stages[i].end, 0.0);
    const auto stage = static_cast<std::size_t>(order.chunks()[i].stage);
    costs.times.resize(std::max(costs.times.size(), stage + 1));
    costs.times[stage].push_back({.forward_seconds = cost,
                                  .backward_input_seconds = recomputes ? 3.0 * cost
                                                            : fused    ? 2.0 * cost
                                                                       : cost,
                                  .backward_weight_seconds = fused ? 0.0 : cost});
  }
  return costs;
}

/// The schedule with the least step time that a search finds within parallel.activations, with the
/// chunks that parallel.chunks asks for and the layers allow.
TrainingSchedule searched_schedule(const config::RunConfig& config, const nn::Model& model,
                                   std::int64_t stages, std::int64_t microbatches) {
  const auto& p = config.parallel;
  std::vector<std::int64_t> tried;
  for (std::int64_t chunks = 1; chunks <= pipeline::kMostChunks; ++chunks) {
    const bool allowed =
        chunks == 1 || (stages * chunks <= model.layer_count() && p.split == "auto");
    if (p.chunks == chunks || (p.chunks == 0 && allowed)) {
      check_layers(config, model, stages, stages * chunks);
      tried.push_back(chunks);
    }
  }
  const auto costs = [&, layers = nn::layer_costs(model)](const pipeline::ChunkOrder& order) {
    return costs_of(config, model, layers, order);
  };
  pipeline::FoundChunks best =
      pipeline::search({.stages = stages,
                        .microbatches = microbatches,
                        .chunks = std::move(tried),
                        .activations = {p.activations != 0 ? p.activations : stages},
                        .costs = costs})
          .value();
  const pipeline::FoundSchedule& found = best.found;
  const double gap = 1.0 - found.lower_bound_seconds / found.simulation.makespan_seconds;
  return {computes_both(config) ? with_weights_at_once(found.schedule) : found.schedule,
          ScheduleSearch{.costs = std::move(best.costs), .optimality_gap = gap}};
}

/// The schedule of the key, made by make() unless it is among `proven`.
template <typename Make>
pipeline::Schedule proven_schedule(ProvenSchedules* proven, const std::string& key,
                                   const Make& make) {
  if (proven == nullptr) {
    return make();
  }
  const auto found = proven->find(key);
  return found != proven->end() ? found->second : proven->emplace(key, make()).first->second;
}

bool has_chunks(std::optional<pipeline::ScheduleKind> kind) {
  return kind == pipeline::ScheduleKind::kInterleaved || kind == pipeline::ScheduleKind::kZbV;
}

}  // namespace

std::int64_t chunks_of(const config::RunConfig& config) {
  const auto& p = config.parallel;
  return p.chunks != 0 ? p.chunks : has_chunks(p.schedule) ? 2 : 1;
}

nn::BackwardOrder backward_order(const config::RunConfig& config,
                                 const pipeline::Schedule& schedule) {
  const std::optional<nn::BackwardOrder> asked = config.parallel.backward;
  // Recomputed activations exist only once, so both gradients of a layer must be computed while
  // they are valid.
  const bool recomputes = config.train.recompute != nn::Recompute::kNone;
  if (asked == nn::BackwardOrder::kSplit && recomputes) {
    fail(ExitCode::kUsage,
         "parallel.backward is split, but train.recompute is {}, which computes both gradients of "
         "a layer together; set parallel.backward to fused or auto",
         name_of(config.train.recompute));
  }
  // The gradient of a piece of the logits exists only until the next piece.
  const bool in_pieces = config.numerics.loss_pieces > 1;
  if (asked == nn::BackwardOrder::kSplit && in_pieces) {
    fail(ExitCode::kUsage,
         "parallel.backward is split, but numerics.loss_pieces is {}, with which both gradients of "
         "a layer are computed together; set parallel.backward to fused or auto, or, in a new run, "
         "numerics.loss_pieces to 1; auto takes more where they save memory",
         config.numerics.loss_pieces);
  }
  if (asked == nn::BackwardOrder::kFused && schedule.stages > 1 &&
      pipeline::defers_weight_gradients(schedule)) {
    fail(ExitCode::kUsage,
         "parallel.backward is fused, but parallel.schedule = {} computes weight gradients later "
         "than input gradients; set parallel.backward to auto, or parallel.schedule to 1f1b",
         config::schedule_name(config));
  }
  // On one stage nobody waits for the input gradient.
  const bool fused = recomputes || in_pieces || asked == nn::BackwardOrder::kFused ||
                     (schedule.order.chunks().size() == 1 && !asked);
  return fused ? nn::BackwardOrder::kFused : nn::BackwardOrder::kSplit;
}

TrainingSchedule training_schedule(const config::RunConfig& config, const nn::Model& model,
                                   std::int64_t stages, std::int64_t microbatches,
                                   device::DeviceKind device, ProvenSchedules* proven) {
  const auto& p = config.parallel;
  const auto refuse = [&](const std::string& because) {
    fail(ExitCode::kUsage, "parallel.chunks is {}, but parallel.schedule = {} {}", p.chunks,
         config::schedule_name(config), because);
  };
  if (!p.schedule && p.chunks > 2) {
    refuse("takes 1 or 2 here; set one of them, or leave it out");
  }
  if (p.activations != 0 && p.schedule) {
    fail(ExitCode::kUsage,
         "parallel.activations is {}, but parallel.schedule = {} is no search; leave it out, or "
         "set parallel.schedule to auto",
         p.activations, config::schedule_name(config));
  }
  if (p.chunks != 0 && p.schedule == pipeline::ScheduleKind::kFile) {
    refuse("says itself which chunks a rank holds; leave parallel.chunks out");
  }
  if (p.chunks > 1 && !has_chunks(p.schedule) && p.schedule) {
    refuse("has one chunk a rank; leave it out, or set parallel.schedule to interleaved");
  }
  if (p.chunks != 0 && p.chunks != 2 && p.schedule == pipeline::ScheduleKind::kZbV) {
    refuse("has 2 chunks a rank; leave parallel.chunks out");
  }
  if (p.chunks == 1 && p.schedule == pipeline::ScheduleKind::kInterleaved) {
    refuse(fmt::format("has 2 to {}; set one of them, or parallel.schedule to 1f1b",
                       pipeline::kMostChunks));
  }
  if (!p.schedule && stages > 1) {
    TrainingSchedule found = searched_schedule(config, model, stages, microbatches);
    found.schedule = for_device(config, std::move(found.schedule), device);
    return found;
  }
  if (p.schedule == pipeline::ScheduleKind::kFile) {
    pipeline::Schedule schedule = schedule_from_file(p.schedule_file, {stages, microbatches});
    check_layers(config, model, stages, std::ssize(schedule.order.chunks()));
    return {for_device(config, std::move(schedule), device), std::nullopt};
  }
  const bool one = stages == 1 && (has_chunks(p.schedule) || !p.schedule);
  check_layers(config, model, stages, one ? 1 : stages * chunks_of(config));
  const pipeline::ScheduleKind kind = one ? pipeline::ScheduleKind::k1f1b : *p.schedule;
  const pipeline::ScheduleSize size{stages, microbatches, one ? 1 : chunks_of(config)};
  const std::string key = fmt::format("{} {} {} {} {}", name_of(kind), size.stages,
                                      size.microbatches, size.chunks, name_of(device));
  return {proven_schedule(
              proven, key,
              [&] { return for_device(config, pipeline::make_schedule(kind, size), device); }),
          std::nullopt};
}

pipeline::Schedule evaluation_schedule(const pipeline::ChunkOrder& order, std::int64_t stages,
                                       std::int64_t microbatches, device::DeviceKind device,
                                       ProvenSchedules* proven) {
  std::string key = fmt::format("forward {} {}", microbatches, name_of(device));
  for (const pipeline::StageChunk& chunk : order.chunks()) {
    key += fmt::format(" {}", chunk.stage);
  }
  return proven_schedule(proven, key, [&] {
    pipeline::Schedule schedule =
        pipeline::insert_communication(pipeline::forward_order(order, stages, microbatches));
    if (!pipeline::check(schedule).passes_with_rendezvous_sends ||
        !pipeline::training_hang(schedule, device).empty()) {
      schedule = pipeline::insert_communication(pipeline::one_by_one(order, stages, microbatches));
    }
    pipeline::require_sound(schedule);
    return schedule;
  });
}

}  // namespace strata::plan
