#include <string>
#include <vector>

#include <fmt/format.h>

#include "strata/comm/values.hpp"
#include "strata/core/error.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation_history.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/stop_signal.hpp"

namespace strata::train {

OpenedCheckpoint open_verified(comm::Communicator& world, const std::filesystem::path& directory,
                               const std::function<void()>& between_parts) {
  const FileTimeout timeout(world);
  OpenedCheckpoint opened;
  try {
    opened.unreadable = comm::first_text(world, [&]() -> std::string {
      try {
        opened.checkpoint = io::Checkpoint::open(directory);
        for (std::int64_t part = world.rank(); part < opened.checkpoint->part_count();
             part += world.size()) {
          between_parts();
          opened.checkpoint->verify_part(part);
        }
      } catch (const FileSystemError& error) {
        if (is_exhaustion(error)) {
          throw;  // of the process, not of the file system
        }
        return fmt::format("rank {}: {}", world.rank(), error.what());
      }
      return "";
    });
  } catch (const comm::AgreedError& error) {
    if (error.code() != ExitCode::kCheckpoint) {
      throw;
    }
    opened.damaged = error.what();
  }
  if (opened.unreadable.empty() && opened.damaged.empty()) {
    opened.checkpoint->set_verified();
  } else {
    opened.checkpoint.reset();
  }
  return opened;
}

namespace {

/// Logs what is unusual about a checkpoint that was opened.
std::optional<io::Checkpoint> with_warning(std::optional<io::Checkpoint> checkpoint, Log& log) {
  if (!checkpoint->warning().empty()) {
    log.warn("{}", checkpoint->warning());
  }
  return checkpoint;
}

/// The first valid checkpoint that `list()`, called on rank 0, returns.
template <typename List>
std::optional<io::Checkpoint> first_good_checkpoint(comm::Communicator& world,
                                                    const std::filesystem::path& root,
                                                    const List& list, Log& log) {
  // All ranks use rank 0's list, because ranks may see different states of a shared file system.
  const std::string listed = comm::agree_on_first(world, [&] {
    std::string mine;
    try {
      for (const io::CheckpointEntry& entry : list()) {
        mine += entry.directory.string() + "\n";
      }
    } catch (const FileSystemError& error) {
      fail(ExitCode::kPeer, "{}. Submit the job again once the file system answers", error.what());
    }
    return mine;
  });
  std::string problem;
  for (std::size_t begin = 0; begin < listed.size();) {
    const std::size_t end = listed.find('\n', begin);
    const std::string directory = listed.substr(begin, end - begin);
    begin = end + 1;
    OpenedCheckpoint opened = open_verified(world, directory, end_setup_on_stop_request);
    if (opened.checkpoint) {
      return with_warning(std::move(opened.checkpoint), log);
    }
    if (!opened.damaged.empty()) {
      problem = opened.damaged;
      log.warn("passing over a bad checkpoint: {}", problem);
      continue;
    }
    // It may be good: a run that went on from an earlier one would replace or delete it.
    throw comm::AgreedError(ExitCode::kPeer,
                            fmt::format("the checkpoint {} cannot be read now: {}. Submit the job "
                                        "again once the file system answers, or move the "
                                        "checkpoint away to continue from an earlier one",
                                        directory, opened.unreadable));
  }
  if (!problem.empty()) {
    throw comm::AgreedError(ExitCode::kCheckpoint,
                            fmt::format("none of the checkpoints in {} is good; the oldest: {}. "
                                        "Restore one from a copy, or choose another "
                                        "run.dir to begin anew, or another checkpoint.init",
                                        root.string(), problem));
  }
  return std::nullopt;
}

}  // namespace

std::optional<io::Checkpoint> newest_good_checkpoint(comm::Communicator& world,
                                                     const std::filesystem::path& root, Log& log) {
  return first_good_checkpoint(
      world, root, [&] { return io::list_checkpoints(root); }, log);
}

io::Checkpoint best_good_checkpoint(comm::Communicator& world, const config::RunConfig& config,
                                    Log& log) {
  const auto list = [&] {
    return std::vector{best_checkpoint(config.run.dir, config.checkpoint.best)};
  };
  try {
    return first_good_checkpoint(world, checkpoint_root(config), list, log).value();
  } catch (const comm::AgreedError& error) {
    if (error.code() != ExitCode::kCheckpoint) {
      throw;
    }
    throw comm::AgreedError(
        ExitCode::kCheckpoint,
        fmt::format("the best checkpoint cannot be used ({}); leave --checkpoint=best out to take "
                    "the newest",
                    error.what()));
  }
}

io::Checkpoint initial_checkpoint(comm::Communicator& world, const std::filesystem::path& path,
                                  Log& log) {
  // All ranks use rank 0's choice.
  const std::string root = comm::agree_on_first(world, [&]() -> std::string {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      fail(ExitCode::kCheckpoint,
           "checkpoint.init: there is no directory {}; give a run directory or one of the "
           "checkpoints in it, as in runs/mnist or runs/mnist/checkpoints/step-00000100",
           path.string());
    }
    if (std::filesystem::is_directory(path / "checkpoints", error)) {
      return (path / "checkpoints").string();
    }
    return io::list_checkpoints(path).empty() ? "" : path.string();
  });
  if (!root.empty()) {
    std::optional<io::Checkpoint> newest = newest_good_checkpoint(world, root, log);
    if (!newest) {
      throw comm::AgreedError(
          ExitCode::kCheckpoint,
          fmt::format("checkpoint.init: there is no checkpoint in {}; give another run", root));
    }
    return *std::move(newest);
  }
  OpenedCheckpoint opened = open_verified(world, path, end_setup_on_stop_request);
  if (!opened.unreadable.empty()) {
    throw comm::AgreedError(
        ExitCode::kPeer,
        fmt::format("checkpoint.init: {} cannot be read now: {}. Submit the job again once the "
                    "file system answers",
                    path.string(), opened.unreadable));
  }
  if (!opened.damaged.empty()) {
    throw comm::AgreedError(ExitCode::kCheckpoint, opened.damaged);
  }
  return *with_warning(std::move(opened.checkpoint), log);
}

}  // namespace strata::train
