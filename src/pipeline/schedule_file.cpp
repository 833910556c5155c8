#include "strata/pipeline/schedule_file.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/core.h>

#include "strata/core/error.hpp"

namespace strata::pipeline {
namespace {

bool is_message(FileActionKind kind) {
  return kind == FileActionKind::kSendForward || kind == FileActionKind::kReceiveForward ||
         kind == FileActionKind::kSendBackward || kind == FileActionKind::kReceiveBackward;
}

bool is_message(const FileCell& cell) {
  return !cell.actions.empty() && is_message(cell.actions.front().kind);
}

/// The actions of a file, and the kinds of strata's that they stand for.
constexpr std::pair<FileActionKind, ActionKind> kKinds[] = {
    {FileActionKind::kForward, ActionKind::kForward},
    {FileActionKind::kBackwardInput, ActionKind::kBackwardInput},
    {FileActionKind::kBackwardWeight, ActionKind::kBackwardWeight},
    {FileActionKind::kBackward, ActionKind::kBackwardInput},
    {FileActionKind::kBackward, ActionKind::kBackwardWeight},
    {FileActionKind::kSendForward, ActionKind::kSendActivation},
    {FileActionKind::kReceiveForward, ActionKind::kReceiveActivation},
    {FileActionKind::kSendBackward, ActionKind::kSendGradient},
    {FileActionKind::kReceiveBackward, ActionKind::kReceiveGradient},
    {FileActionKind::kUnshard, ActionKind::kUnshard},
    {FileActionKind::kReshard, ActionKind::kReshard},
    {FileActionKind::kReduceGradient, ActionKind::kReduceGradient}};

std::vector<ActionKind> kinds_of(FileActionKind kind) {
  std::vector<ActionKind> kinds;
  for (const auto& [of_file, own] : kKinds) {
    if (of_file == kind) {
      kinds.push_back(own);
    }
  }
  return kinds;
}

FileActionKind file_kind_of(ActionKind kind) {
  const auto* const found =
      std::ranges::find(kKinds, kind, &std::pair<FileActionKind, ActionKind>::second);
  require(found != std::end(kKinds), "a {} has no letter", name_of(kind));
  return found->first;
}

/// The stages of the file, each on one rank; a rank's chunks ascend by stage.
ChunkOrder order_of(const ScheduleFile& file, std::string_view name) {
  std::map<std::int64_t, std::int64_t> rank_of;
  for (std::size_t rank = 0; rank < file.ranks.size(); ++rank) {
    for (const FileCell& cell : file.ranks[rank]) {
      for (const FileAction& action : cell.actions) {
        const auto [at, is_new] = rank_of.emplace(action.stage, rank);
        if (at->second != static_cast<std::int64_t>(rank)) {
          fail(ExitCode::kUsage,
               "{}: stage {} is on line {} and on line {}; each stage has one rank", name,
               action.stage, at->second + 1, rank + 1);
        }
      }
    }
  }
  std::vector<StageChunk> chunks;
  std::vector<std::int64_t> chunks_on(file.ranks.size(), 0);
  for (const auto& [stage, rank] : rank_of) {
    if (stage != std::ssize(chunks)) {
      fail(ExitCode::kUsage,
           "{} has no actions of stage {}, but of stage {}; stages are numbered "
           "from 0 without gaps",
           name, chunks.size(), stage);
    }
    chunks.push_back({.stage = rank, .chunk = chunks_on[static_cast<std::size_t>(rank)]++});
  }
  if (chunks.empty() || std::ranges::count(chunks_on, 0) > 0) {
    fail(ExitCode::kUsage, "{} has {}; each line is a rank with at least one stage", name,
         chunks.empty() ? "no actions" : "a line without actions");
  }
  return ChunkOrder(std::move(chunks));
}

/// Appends a cell with the messages that it needs, and no cell in which a rank waits.
void append_with_messages(std::vector<FileCell>& cells, const FileCell& cell,
                          const ChunkOrder& order) {
  const auto rank_of = [&](std::int64_t stage) {
    return order.chunks()[static_cast<std::size_t>(stage)].stage;
  };
  const auto exchange = [&](FileActionKind kind, const FileAction& action, std::int64_t other) {
    const bool exists = other >= 0 && other < std::ssize(order.chunks());
    if (exists && rank_of(other) != rank_of(action.stage)) {
      cells.push_back({{{.kind = kind, .stage = action.stage, .microbatch = action.microbatch}}});
    }
  };
  const auto each = [&](FileActionKind forward, std::int64_t forward_to, FileActionKind backward) {
    for (const FileAction& action : cell.actions) {
      if (action.kind == FileActionKind::kForward) {
        exchange(forward, action, action.stage + forward_to);
      } else if (action.kind == FileActionKind::kBackward ||
                 action.kind == FileActionKind::kBackwardInput) {
        exchange(backward, action, action.stage - forward_to);
      }
    }
  };
  each(FileActionKind::kReceiveForward, -1, FileActionKind::kReceiveBackward);
  if (!cell.actions.empty()) {
    cells.push_back(cell);
  }
  each(FileActionKind::kSendForward, 1, FileActionKind::kSendBackward);
}

void append(std::vector<Action>& list, const Schedule& schedule, const FileAction& action) {
  const StageChunk here = schedule.order.chunks()[static_cast<std::size_t>(action.stage)];
  for (const ActionKind kind : kinds_of(action.kind)) {
    Action own{.kind = kind,
               .microbatch = is_sharding(kind) ? 0 : *action.microbatch,
               .chunk = here.chunk};
    if (is_send(kind) || is_receive(kind)) {
      const bool before =
          kind == ActionKind::kReceiveActivation || kind == ActionKind::kSendGradient;
      const auto peer = before ? upstream(schedule, here) : downstream(schedule, here);
      own.peer = peer ? peer->stage : kNoPeer;
    }
    list.push_back(own);
  }
}

/// The compute action that a message belongs to; others are their own.
ActionKind compute_kind_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kSendActivation:
    case ActionKind::kReceiveActivation:
      return ActionKind::kForward;
    case ActionKind::kSendGradient:
    case ActionKind::kReceiveGradient:
      return ActionKind::kBackwardInput;
    default:
      return kind;
  }
}

std::int64_t most_microbatch(const ScheduleFile& file) {
  std::int64_t most = 0;
  for (const std::vector<FileCell>& cells : file.ranks) {
    for (const FileCell& cell : cells) {
      for (const FileAction& action : cell.actions) {
        most = std::max(most, action.microbatch.value_or(0));
      }
    }
  }
  return most;
}

/// The cells of one rank for a stage's actions. An input gradient and a weight gradient right
/// behind it become B.
std::vector<FileCell> cells_of(const Schedule& schedule, std::size_t stage, FileContent content) {
  std::vector<FileCell> cells;
  bool message_before = false;
  for (const Action& action : schedule.stage_actions[stage]) {
    const bool message = is_send(action.kind) || is_receive(action.kind);
    const bool follows_message = std::exchange(message_before, message);
    if (action.kind == ActionKind::kReduce || (message && content == FileContent::kCompute)) {
      continue;
    }
    const FileAction next{.kind = file_kind_of(action.kind),
                          .stage = schedule.order.index_of(
                              {.stage = static_cast<std::int64_t>(stage), .chunk = action.chunk}),
                          .microbatch = action.microbatch};
    FileAction input = next;
    input.kind = FileActionKind::kBackwardInput;
    if (next.kind == FileActionKind::kBackwardWeight && !follows_message && !cells.empty() &&
        cells.back() == FileCell{{input}}) {
      cells.back().actions.front().kind = FileActionKind::kBackward;
    } else {
      cells.push_back({{next}});
    }
  }
  return cells;
}

}  // namespace

void require_size(std::int64_t chunks, std::int64_t microbatches, std::string_view name) {
  constexpr std::int64_t kMost = std::int64_t{1} << 23;  // 4,096 chunks x 2,048 microbatches
  if (chunks > kMost / microbatches) {
    fail(ExitCode::kUsage, "{} has {} chunks x {} microbatches, more than {}", name, chunks,
         microbatches, kMost);
  }
}

bool has_messages(const ScheduleFile& file) {
  return std::ranges::any_of(file.ranks, [](const std::vector<FileCell>& cells) {
    return std::ranges::any_of(cells, [](const FileCell& cell) { return is_message(cell); });
  });
}

Schedule schedule_of(const ScheduleFile& file, std::string_view name) {
  if (!has_messages(file)) {
    const ScheduleFile complete = converted(file, FileContent::kMessages, name);
    if (has_messages(complete)) {
      return schedule_of(complete, name);
    }
  }
  Schedule schedule{.kind = ScheduleKind::kFile,
                    .stages = std::ssize(file.ranks),
                    .microbatches = 1,
                    .chunks = 1,
                    .order = order_of(file, name),
                    .stage_actions = {}};
  for (const StageChunk& position : schedule.order.chunks()) {
    schedule.chunks = std::max(schedule.chunks, position.chunk + 1);
  }
  require_size(schedule.stages * schedule.chunks, most_microbatch(file) + 1, name);
  bool trains = false;
  for (const std::vector<FileCell>& cells : file.ranks) {
    std::vector<Action>& list = schedule.stage_actions.emplace_back();
    for (const FileCell& cell : cells) {
      for (const FileAction& action : cell.actions) {
        append(list, schedule, action);
        schedule.microbatches = std::max(schedule.microbatches, list.back().microbatch + 1);
        trains = trains || list.back().kind == ActionKind::kBackwardInput ||
                 list.back().kind == ActionKind::kBackwardWeight;
      }
    }
  }
  for (std::vector<Action>& list : schedule.stage_actions) {
    if (trains) {
      list.push_back({.kind = ActionKind::kReduce});
    }
  }
  return schedule;
}

ScheduleFile file_of(const Schedule& schedule, FileContent content) {
  ScheduleFile file;
  for (std::size_t stage = 0; stage < schedule.stage_actions.size(); ++stage) {
    file.ranks.push_back(cells_of(schedule, stage, content));
  }
  return file;
}

ScheduleFile converted(const ScheduleFile& file, FileContent content, std::string_view name) {
  if (content == FileContent::kMessages && has_messages(file)) {
    return file;
  }
  const ChunkOrder order = order_of(file, name);
  ScheduleFile result;
  for (const std::vector<FileCell>& row : file.ranks) {
    std::vector<FileCell>& cells = result.ranks.emplace_back();
    for (const FileCell& cell : row) {
      if (content == FileContent::kMessages) {
        append_with_messages(cells, cell, order);
      } else if (!is_message(cell)) {
        cells.push_back(cell);
      }
    }
  }
  return result;
}

std::string place_text(const ScheduleFile& file, const Schedule& schedule, const ActionPlace& place,
                       std::string_view name) {
  const auto& cells = file.ranks[static_cast<std::size_t>(place.stage)];
  for (const ActionKind kind : {place.action.kind, compute_kind_of(place.action.kind)}) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      for (const FileAction& action : cells[i].actions) {
        const auto kinds = kinds_of(action.kind);
        const StageChunk here = schedule.order.chunks()[static_cast<std::size_t>(action.stage)];
        if (action.microbatch == place.action.microbatch && here.chunk == place.action.chunk &&
            std::ranges::find(kinds, kind) != kinds.end()) {
          return fmt::format("{}:{}: cell {} ({})", name, place.stage + 1, i + 1,
                             text_of(cells[i]));
        }
      }
    }
  }
  return fmt::format("{}:{}", name, place.stage + 1);
}

std::vector<std::string> file_errors(const ScheduleFile& file, const Schedule& schedule,
                                     const CheckReport& report, std::string_view name) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < report.errors.size(); ++i) {
    const ActionPlace& place = report.places[i];
    const bool of_a_stage = place.stage >= 0 && place.stage < std::ssize(file.ranks);
    texts.push_back(fmt::format(
        "{}: {}", of_a_stage ? place_text(file, schedule, place, name) : std::string(name),
        report.errors[i]));
  }
  return texts;
}

}  // namespace strata::pipeline
