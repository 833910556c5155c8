#include "file_schedule.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/input.hpp"
#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/pipeline/schedule_file.hpp"

namespace strata::plan {
namespace {

using pipeline::ActionKind;

/// Rejects stages elsewhere than on their own line, and cells that training does not run.
void check_cells(const pipeline::ScheduleFile& file, const std::string& path) {
  for (std::size_t rank = 0; rank < file.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < file.ranks[rank].size(); ++i) {
      const pipeline::FileCell& cell = file.ranks[rank][i];
      const auto refuse = [&](const std::string& because) {
        fail(ExitCode::kUsage, "{}:{}: cell {} ({}): {}", path, rank + 1, i + 1, text_of(cell),
             because);
      };
      for (const pipeline::FileAction& action : cell.actions) {
        if (action.stage != static_cast<std::int64_t>(rank)) {
          refuse(
              fmt::format("training runs one chunk a rank, in rank order, so line {} has stage "
                          "{} alone; give such a file",
                          rank + 1, rank));
        }
        if (action.kind == pipeline::FileActionKind::kUnshard ||
            action.kind == pipeline::FileActionKind::kReshard ||
            action.kind == pipeline::FileActionKind::kReduceGradient) {
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
         {ActionKind::kBackwardWeight, ActionKind::kBackwardInput, ActionKind::kForward}) {
      std::int64_t last = -1;
      for (const pipeline::Action& action :
           schedule.stage_actions[static_cast<std::size_t>(stage)]) {
        if (action.kind != kind) {
          continue;
        }
        if (action.microbatch < last) {
          fail(ExitCode::kUsage,
               "{}: {} follows that of microbatch {}; in training the actions of each kind ascend "
               "by microbatch, so reorder them",
               place_text(file, schedule, {.stage = stage, .action = action}, path),
               text_of(action), last);
        }
        last = action.microbatch;
      }
    }
  }
}

}  // namespace

pipeline::Schedule schedule_from_file(const std::string& path, const pipeline::ScheduleSize& size,
                                      device::DeviceKind device) {
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
  const std::string hang = pipeline::training_hang(schedule, device);
  if (!hang.empty()) {
    fail(ExitCode::kUsage,
         "{}: {}, because sends wait for their receives{}; move receives ahead (strata schedule "
         "convert --messages=on writes them)",
         path, hang, device == device::DeviceKind::kCuda ? " on GPUs" : "");
  }
  return schedule;
}

}  // namespace strata::plan
