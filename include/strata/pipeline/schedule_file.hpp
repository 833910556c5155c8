#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/pipeline/checker.hpp"
#include "strata/pipeline/schedule.hpp"

/// Schedules as torch.distributed.pipelining reads and writes them: a row a rank, a cell an action.
/// Its stages are numbered along the layers; a rank has one or more of them, which are strata's
/// chunks. Format: docs/schedules.md.
namespace strata::pipeline {

/// The actions of a file, by their letters.
enum class FileActionKind {
  kForward,         ///< F
  kBackwardInput,   ///< I
  kBackwardWeight,  ///< W
  kBackward,        ///< B: input and weight gradient
  kSendForward,
  kReceiveForward,
  kSendBackward,
  kReceiveBackward,
  kUnshard,
  kReshard,
  kReduceGradient
};

constexpr auto enum_names(FileActionKind) {
  return names_in_order("F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD",
                        "RESHARD", "REDUCE_GRAD");
}

/// Whether it is of sharded weights, which training does not run; such actions come last.
[[nodiscard]] constexpr bool is_sharding(FileActionKind kind) {
  return kind >= FileActionKind::kUnshard;
}

/// One action of a file, as in 2F0.
struct FileAction {
  FileActionKind kind = FileActionKind::kForward;
  std::int64_t stage = 0;  ///< along the layers
  std::optional<std::int64_t> microbatch;

  friend bool operator==(const FileAction&, const FileAction&) = default;
};

/// One cell: no action where a rank waits, several where they overlap, as in (2F1;0B0)OVERLAP_F_B.
struct FileCell {
  std::vector<FileAction> actions;

  friend bool operator==(const FileCell&, const FileCell&) = default;
};

/// The rows of a file.
struct ScheduleFile {
  std::vector<std::vector<FileCell>> ranks;

  friend bool operator==(const ScheduleFile&, const ScheduleFile&) = default;
};

/// The most bytes of a file.
inline constexpr std::int64_t kMostFileBytes = std::int64_t{16} << 20;

/// Bounds the memory of a check and of a simulation.
/// Throws: Error(kUsage) for more than 2^23 chunks x microbatches.
void require_size(std::int64_t chunks, std::int64_t microbatches, std::string_view name);

/// Reads the text of a file.
/// Throws: Error(kUsage) that names the line and the cell: a cell that is no action, and the
/// older form, in which B is the input gradient alone.
[[nodiscard]] ScheduleFile parse_schedule(std::string_view text, std::string_view name);

/// The text of a cell, and of a file.
[[nodiscard]] std::string text_of(const FileCell& cell);
[[nodiscard]] std::string text_of(const ScheduleFile& file);

/// Whether the file has messages.
[[nodiscard]] bool has_messages(const ScheduleFile& file);

/// The schedule of a file; messages are inserted where the file has none.
/// Throws: Error(kUsage) where the stages are not 0, 1, ... with one rank each.
[[nodiscard]] Schedule schedule_of(const ScheduleFile& file, std::string_view name);

/// The file of a schedule.
enum class FileContent { kCompute, kMessages };
[[nodiscard]] ScheduleFile file_of(const Schedule& schedule, FileContent content);

/// The file with other content: messages inserted or left out; other cells stay.
[[nodiscard]] ScheduleFile converted(const ScheduleFile& file, FileContent content,
                                     std::string_view name);

/// What is wrong with the file's schedule, each with the line and, where an action is to blame, the
/// cell.
[[nodiscard]] std::vector<std::string> file_errors(const ScheduleFile& file,
                                                   const Schedule& schedule,
                                                   const CheckReport& report,
                                                   std::string_view name);

/// The place of an action, as in "FILE:2: cell 7 (1W0)". An inserted message has the place of its
/// compute action.
[[nodiscard]] std::string place_text(const ScheduleFile& file, const Schedule& schedule,
                                     const ActionPlace& place, std::string_view name);

}  // namespace strata::pipeline
