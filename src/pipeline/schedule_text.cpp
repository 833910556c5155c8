#include <algorithm>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/pipeline/schedule_file.hpp"

namespace strata::pipeline {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::int64_t kMostStages = 65536;
constexpr std::int64_t kMostMicrobatches = 65536;

/// Where a parser is, for its messages.
struct Place {
  std::string_view name;
  std::size_t line = 0;
  std::size_t cell = 0;
};

[[noreturn]] void refuse(const Place& place, std::string_view cell, std::string_view why) {
  fail(ExitCode::kUsage, "{}:{}: cell {} is \"{}\"; {}", place.name, place.line, place.cell,
       cell.substr(0, 40), why);
}

/// Takes digits off the front.
std::optional<std::int64_t> take_number(std::string_view& text, std::int64_t most) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::int64_t number = 0;
  if (digits == 0 || !parse_int64(text.substr(0, digits), number) || number > most) {
    return std::nullopt;
  }
  text.remove_prefix(digits);
  return number;
}

FileAction action_of(std::string_view text, std::string_view cell, const Place& place) {
  constexpr std::string_view kForm =
      "an action is a stage, one of F, I, W, B, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD "
      "and REDUCE_GRAD, and a microbatch, as in 2F0";
  FileAction action;
  const auto stage = take_number(text, kMostStages - 1);
  if (!stage) {
    refuse(place, cell, kForm);
  }
  action.stage = *stage;
  const std::size_t letters = std::min(text.find_first_of("0123456789"), text.size());
  const std::string_view kind = text.substr(0, letters);
  if (kind == "BW") {
    refuse(
        place, cell,
        "in this older form BW is the whole backward pass and B the input gradient; replace B by "
        "I, then BW by B");
  }
  const auto known = enum_from_name<FileActionKind>(kind);
  if (!known) {
    refuse(place, cell, kForm);
  }
  action.kind = *known;
  text.remove_prefix(letters);
  if (!text.empty()) {
    action.microbatch = take_number(text, kMostMicrobatches - 1);
  }
  if (!text.empty() || (!action.microbatch && !is_sharding(action.kind))) {
    refuse(place, cell, kForm);
  }
  return action;
}

FileCell cell_of(std::string_view text, const Place& place) {
  FileCell cell;
  const std::string_view whole = trimmed(text);
  if (whole.empty()) {
    return cell;
  }
  if (whole.front() != '(') {
    cell.actions.push_back(action_of(whole, whole, place));
    return cell;
  }
  const std::size_t end = whole.find(')');
  if (end == std::string_view::npos || whole.substr(end + 1) != kOverlap) {
    refuse(place, whole, "actions that overlap are written as in (2F1;0B0)OVERLAP_F_B");
  }
  for (const std::string& part : split_words(whole.substr(1, end - 1), ";")) {
    cell.actions.push_back(action_of(trimmed(part), whole, place));
  }
  if (cell.actions.size() < 2) {
    refuse(place, whole, "actions that overlap are two or more");
  }
  return cell;
}

std::string text_of(const FileAction& action) {
  return fmt::format("{}{}{}", action.stage, name_of(action.kind),
                     action.microbatch ? std::to_string(*action.microbatch) : "");
}

/// Throws: Error(kUsage) for a W after the B of the same microbatch.
void refuse_second_weights(const ScheduleFile& file, std::string_view name) {
  for (std::size_t rank = 0; rank < file.ranks.size(); ++rank) {
    std::set<std::pair<std::int64_t, std::int64_t>> whole;
    for (std::size_t i = 0; i < file.ranks[rank].size(); ++i) {
      for (const FileAction& action : file.ranks[rank][i].actions) {
        const std::pair key(action.stage, action.microbatch.value_or(-1));
        if (action.kind == FileActionKind::kBackward) {
          whole.insert(key);
        } else if (action.kind == FileActionKind::kBackwardWeight && whole.contains(key)) {
          refuse({.name = name, .line = rank + 1, .cell = i + 1}, text_of(file.ranks[rank][i]),
                 "a B before it holds the weight gradient already; in older files B is the input "
                 "gradient: replace B by I");
        }
      }
    }
  }
}

}  // namespace

ScheduleFile parse_schedule(std::string_view text, std::string_view name) {
  ScheduleFile file;
  Place place{.name = name, .line = 0, .cell = 0};
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++place.line;
    place.cell = 0;
    if (trimmed(line).empty() && trimmed(text).empty()) {
      break;  // the end of the file
    }
    std::vector<FileCell>& cells = file.ranks.emplace_back();
    for (bool more = true; more;) {
      const std::size_t comma = std::min(line.find(','), line.size());
      more = comma < line.size();
      ++place.cell;
      cells.push_back(cell_of(line.substr(0, comma), place));
      line.remove_prefix(std::min(comma + 1, line.size()));
    }
  }
  refuse_second_weights(file, name);
  return file;
}

std::string text_of(const FileCell& cell) {
  std::string text;
  for (const FileAction& action : cell.actions) {
    text += (text.empty() ? "" : ";") + text_of(action);
  }
  return cell.actions.size() > 1 ? fmt::format("({}){}", text, kOverlap) : text;
}

std::string text_of(const ScheduleFile& file) {
  std::string text;
  for (const std::vector<FileCell>& cells : file.ranks) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += (i == 0 ? "" : ",") + text_of(cells[i]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace strata::pipeline
