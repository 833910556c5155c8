#include "environment/run_directory.hpp"

#include <system_error>

#include "strata/comm/agree.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/metrics.hpp"
#include "strata/train/stop_signal.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

/// Checks that all ranks see rank 0's lock, which holds `nonce`. Communication: collective over the
/// world.
void require_shared(comm::MpiSession& mpi, const fs::path& directory, const std::string& nonce) {
  constexpr double kTimeoutSeconds = 5.0;
  constexpr std::size_t kMostNamed = 8;
  comm::Communicator& world = mpi.world();
  const std::vector<std::string> blind = comm::agree_texts(world, [&] {
    return io::DirectoryLock::is_visible(directory, {}, nonce, kTimeoutSeconds) ? "" : "blind";
  });
  std::string named;
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < blind.size(); ++rank) {
    if (!blind[rank].empty() && ++count <= kMostNamed) {
      named += fmt::format("{}rank {} on {}", named.empty() ? "" : ", ", rank, mpi.hosts()[rank]);
    }
  }
  if (count > 0) {
    throw comm::AgreedError(
        ExitCode::kUsage,
        fmt::format("run.dir {} is not shared: {}{} {} not see the file that rank 0 wrote there; "
                    "choose a directory on a file system that all nodes mount, as an absolute path",
                    directory.string(), named,
                    count > kMostNamed ? fmt::format(" and {} more", count - kMostNamed) : "",
                    count == 1 ? "does" : "do"));
  }
}

/// Keeps the history of a run that ended before its first checkpoint.
void keep_metrics(const config::RunConfig& config, Log& log) {
  const fs::path metrics = fs::path(config.run.dir) / "metrics.jsonl";
  const std::int64_t step = train::last_metrics_step(metrics);
  if (step == 0) {
    return;
  }
  if (!fs::exists(train::unsaved_marker(config))) {
    fail(
        ExitCode::kCheckpoint,
        "{} has metrics up to step {}, but its checkpoints are gone; restore {}, or choose another "
        "run.dir to start anew",
        config.run.dir, step, train::checkpoint_root(config).string());
  }
  std::int64_t number = 1;
  const auto numbered = [&] { return fs::path(fmt::format("{}.{}", metrics.string(), number)); };
  while (fs::exists(fs::symlink_status(numbered()))) {
    ++number;
  }
  fs::rename(metrics, numbered());
  std::string facts;  // of earlier starts
  io::read_lines(numbered(), ExitCode::kData, [&](std::string_view text) {
    const auto line = train::metrics_line_of(text);
    if (line && line->kind == train::kRunKind) {
      facts.append(text).push_back('\n');
    }
  });
  io::replace_text(metrics, facts);
  log.info(
      "the last run in {} ended after step {}, before its first checkpoint; its metrics are in "
      "{}, and training starts at step 1",
      config.run.dir, step, numbered().string());
}

}  // namespace

void make_directory(const fs::path& directory, std::string_view setting) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    fail(ExitCode::kUsage, "cannot make the directory {}: {}; choose another {}",
         directory.string(), error.message(), setting);
  }
}

RunDirectory::RunDirectory(comm::MpiSession& mpi, const config::RunConfig& config, Log& log) {
  comm::Communicator& world = mpi.world();
  const fs::path directory(config.run.dir);
  // Rank 0 may watch the heartbeat of another owner, and a rank retry to see the directory.
  constexpr double kExtraSeconds = 120.0;
  const comm::Timeout before = world.timeout();
  world.set_timeout({.seconds = before.seconds + kExtraSeconds});
  const std::vector<std::string> nonces = comm::agree_texts(world, [&] {
    train::end_setup_on_stop_request();
    if (world.rank() == 0) {
      unused_.emplace(directory);
      make_directory(directory, "run.dir");
      lock_.emplace(directory, io::LockOptions{.while_watching = train::end_setup_on_stop_request},
                    log);
    }
    return lock_ ? lock_->nonce() : "";
  });
  require_shared(mpi, directory, nonces.front());
  world.set_timeout(before);
}

std::string begin_run(comm::MpiSession& mpi, const RunInputs& inputs, const plan::Plan& plan,
                      Log& log) {
  std::string other_bits;
  comm::agree(mpi.world(), [&] {
    train::end_setup_on_stop_request();
    if (inputs.checkpoint) {
      other_bits = train::bits_change(plan, *inputs.checkpoint);
    }
    if (mpi.world().rank() != 0) {
      return;
    }
    const config::RunConfig& config = inputs.config;
    if (!inputs.checkpoint || inputs.checkpoint->step() < plan.total_steps) {
      train::require_space(plan, log);
    }
    if (!inputs.checkpoint) {
      keep_metrics(config, log);
      io::replace_text(train::unsaved_marker(config), "");
    }
    make_directory(train::checkpoint_root(config), "run.dir");
    log.open_file((fs::path(config.run.dir) / "log.txt").string());
  });
  return other_bits;
}

}  // namespace strata::app
