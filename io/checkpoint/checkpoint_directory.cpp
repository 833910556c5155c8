#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/io/directory_lock.hpp"

#include "checkpoint/checkpoint_format.hpp"
#include "files/posix_file.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;
using checkpoint::directory_of;
using checkpoint::DirectoryState;

constexpr std::array<std::pair<DirectoryState, std::string_view>, 4> kSuffixes{
    {{DirectoryState::kVisible, ""},
     {DirectoryState::kPartial, ".partial"},
     {DirectoryState::kReplaced, ".replaced"},
     {DirectoryState::kDeleted, ".deleted"}}};

struct StepDirectory {
  std::int64_t step = 0;
  DirectoryState state = DirectoryState::kVisible;
  std::string save;
};

constexpr std::string_view kDigits = "0123456789";

// Parses the name of a directory in a checkpoint root; nothing for other names. A partial one has
// the id of its save between step and suffix; older versions wrote none.
std::optional<StepDirectory> parse_name(std::string_view name) {
  for (const auto& [state, suffix] : kSuffixes) {
    const std::string_view prefix = state == DirectoryState::kVisible ? "step-" : ".step-";
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) {
      continue;
    }
    std::string_view digits =
        name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    std::string_view save;
    if (const std::size_t dot = digits.find('.');
        dot != std::string_view::npos && state == DirectoryState::kPartial) {
      save = digits.substr(dot + 1);
      digits = digits.substr(0, dot);
    }
    std::int64_t step = 0;
    if (digits.size() >= 8 && digits.find_first_not_of(kDigits) == std::string_view::npos &&
        parse_int64(digits, step)) {
      return StepDirectory{.step = step, .state = state, .save = std::string(save)};
    }
  }
  return std::nullopt;
}

// A file system that does not answer is an error: an absent checkpoint would begin a run anew.
bool is_there(const fs::path& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) {
    throw FileSystemError(ExitCode::kCheckpoint, error.value(),
                          fmt::format("cannot read {}: {}", path.string(), error.message()));
  }
  return found;
}

std::vector<StepDirectory> scan(const fs::path& root) {
  std::vector<StepDirectory> found;
  std::error_code error;
  for (fs::directory_iterator entries(root, error), end; !error && entries != end;
       entries.increment(error)) {
    if (const auto one = parse_name(entries->path().filename().string());
        one && entries->is_directory(error)) {
      found.push_back(*one);
    }
    if (error) {
      break;
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw FileSystemError(
        ExitCode::kCheckpoint, error.value(),
        fmt::format("cannot list the checkpoints in {}: {}", root.string(), error.message()));
  }
  return found;
}

void delete_directory(const fs::path& directory) {
  std::error_code error;
  fs::remove_all(directory, error);
  if (error) {
    fail(ExitCode::kCheckpoint, "cannot delete {}: {}", directory.string(), error.message());
  }
}

// Renames a checkpoint so that no reader finds it, then deletes it.
void discard(const fs::path& root, std::int64_t step, DirectoryState state) {
  const fs::path deleted = directory_of(root, step, DirectoryState::kDeleted);
  delete_directory(deleted);
  rename_file(directory_of(root, step, state), deleted, ExitCode::kCheckpoint);
  delete_directory(deleted);
}

// Deletes the directories of saves of `step` that were not committed.
void delete_partial(const fs::path& root, std::int64_t step) {
  for (const StepDirectory& one : scan(root)) {
    if (one.state == DirectoryState::kPartial && one.step == step) {
      delete_directory(directory_of(root, step, one.state, one.save));
    }
  }
}

}  // namespace

namespace checkpoint {

fs::path directory_of(const fs::path& root, std::int64_t step, DirectoryState state,
                      std::string_view save) {
  for (const auto& [listed, suffix] : kSuffixes) {
    if (listed == state) {
      return root / fmt::format("{}step-{:08d}{}{}{}", state == DirectoryState::kVisible ? "" : ".",
                                step, save.empty() ? "" : ".", save, suffix);
    }
  }
  return root;
}

std::string save_of(const fs::path& partial) {
  const auto parsed = parse_name(partial.filename().string());
  return parsed ? parsed->save : "";
}

void make_visible(const fs::path& partial, const fs::path& root, std::int64_t step) {
  const fs::path visible = directory_of(root, step, DirectoryState::kVisible);
  const fs::path replaced = directory_of(root, step, DirectoryState::kReplaced);
  if (is_there(visible)) {
    if (is_there(replaced)) {
      discard(root, step, DirectoryState::kReplaced);
    }
    // After a kill at this point, list_checkpoints still finds the earlier checkpoint.
    rename_file(visible, replaced, ExitCode::kCheckpoint);
  }
  rename_file(partial, visible, ExitCode::kCheckpoint);
  sync_file(root, ExitCode::kCheckpoint);
  if (is_there(replaced)) {
    discard(root, step, DirectoryState::kReplaced);
  }
}

}  // namespace checkpoint

std::optional<std::int64_t> step_of_name(const fs::path& directory) {
  const fs::path name =
      directory.has_filename() ? directory.filename() : directory.parent_path().filename();
  const auto parsed = parse_name(name.string());
  return parsed ? std::optional(parsed->step) : std::nullopt;
}

fs::path begin_checkpoint(const fs::path& root, std::int64_t step) {
  require(step >= 0, "a checkpoint of step {}", step);
  delete_partial(root, step);
  fs::path directory = directory_of(root, step, DirectoryState::kPartial, make_nonce());
  std::error_code error;
  fs::create_directories(root, error);
  if (!error) {
    fs::create_directory(directory, error);
  }
  if (error) {
    fail(ExitCode::kCheckpoint, "cannot make the checkpoint directory {}: {}", directory.string(),
         error.message());
  }
  return directory;
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& root) {
  const std::vector<StepDirectory> found = scan(root);
  std::set<std::int64_t> visible;
  for (const StepDirectory& one : found) {
    if (one.state == DirectoryState::kVisible) {
      visible.insert(one.step);
    }
  }
  std::vector<CheckpointEntry> entries;
  for (const StepDirectory& one : found) {
    if (one.state == DirectoryState::kVisible ||
        (one.state == DirectoryState::kReplaced && !visible.contains(one.step))) {
      entries.push_back({.step = one.step, .directory = directory_of(root, one.step, one.state)});
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return entries;
}

void delete_leftovers(const fs::path& root) {
  for (const StepDirectory& one : scan(root)) {
    if (one.state == DirectoryState::kPartial || one.state == DirectoryState::kDeleted) {
      delete_directory(directory_of(root, one.step, one.state, one.save));
    }
  }
}

void prune_checkpoints(const fs::path& root, std::int64_t newest_step, std::int64_t keep,
                       std::int64_t keep_every, std::int64_t best_step) {
  require(keep >= 1, "{} checkpoints to keep", keep);
  for (const StepDirectory& one : scan(root)) {
    const fs::path visible = directory_of(root, one.step, DirectoryState::kVisible);
    if (one.state == DirectoryState::kReplaced && !is_there(visible)) {
      rename_file(directory_of(root, one.step, one.state), visible, ExitCode::kCheckpoint);
    } else if (one.state == DirectoryState::kReplaced) {
      discard(root, one.step, one.state);
    }
  }
  delete_leftovers(root);
  std::vector<CheckpointEntry> entries = list_checkpoints(root);
  std::erase_if(entries, [&](const CheckpointEntry& entry) { return entry.step > newest_step; });
  for (std::size_t i = static_cast<std::size_t>(keep); i < entries.size(); ++i) {
    const bool permanent = keep_every != 0 && entries[i].step % keep_every == 0;
    if (!permanent && entries[i].step != best_step) {
      discard(root, entries[i].step, DirectoryState::kVisible);
    }
  }
}

}  // namespace strata::io
