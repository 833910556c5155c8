#include <filesystem>
#include <fstream>
#include <optional>

#include <sys/resource.h>

#include "strata/app/config_file.hpp"
#include "strata/comm/agree.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/stop_signal.hpp"
#include "strata/train/trainer.hpp"

#include "commands.hpp"
#include "threads.hpp"

namespace strata::app {
namespace {

/// What train and evaluate begin with: the config, the data sets and the checkpoint to go on from.
struct Session {
  train::RunConfig config;
  std::optional<io::Dataset> train_data;
  std::optional<io::Dataset> test_data;
  std::optional<io::Checkpoint> checkpoint;
  int threads = 1;
};

void require_device(const train::RunConfig& config) {
  if (config.run.device == train::DeviceChoice::kCuda) {
    fail(ExitCode::kUsage,
         "run.device is cuda, but the operations of this version run on the CPU; set it to auto or "
         "cpu");
  }
}

io::Dataset open_data(const train::RunConfig& config, const std::string& master) {
  io::Dataset data = io::Dataset::open(master);
  if (data.info().task == io::Task::kNextToken) {
    data.set_context(train::context_of(config));
  }
  return data;
}

/// Reads the config and opens the data sets, the same on every rank.
Session open_session(comm::MpiSession& mpi, const std::string& path, Arguments settings) {
  Session session;
  comm::agree(mpi.world(), [&] {
    session.config = read_config(path, settings);
    require_device(session.config);
    if (session.config.data.train.empty()) {
      fail(
          ExitCode::kUsage,
          "data.train is empty; make a data set with \"strata data import\" and name its train.h5");
    }
    session.train_data = open_data(session.config, session.config.data.train);
    if (!session.config.data.test.empty()) {
      session.test_data = open_data(session.config, session.config.data.test);
    }
    session.threads = session.config.run.threads > 0 ? static_cast<int>(session.config.run.threads)
                                                     : default_threads(mpi.ranks_on_node());
  });
  mpi.world().set_patience({.seconds = session.config.run.patience_seconds});
  // Before anything that a setting may branch on.
  comm::check_same_plan(
      mpi.world(), {{"config", hash_of(config_text(session.config))},
                    {"training data", session.train_data->info().checksum},
                    {"test data", session.test_data ? session.test_data->info().checksum : 0}});
  return session;
}

/// Refuses or takes up what run.dir holds.
void take_up_run_directory(comm::MpiSession& mpi, Session& session, Log& log) {
  const train::RunConfig& config = session.config;
  const std::filesystem::path root = train::checkpoint_root(config);
  if (config.run.resume == train::Resume::kNever) {
    comm::agree(mpi.world(), [&] {
      const std::filesystem::path dir(config.run.dir);
      if (mpi.world().rank() == 0 &&
          (std::filesystem::exists(dir / "config.ini") || !io::list_checkpoints(root).empty())) {
        fail(
            ExitCode::kUsage,
            "{} holds a run already; continue it with --run.resume=auto, or choose another run.dir",
            config.run.dir);
      }
    });
    return;
  }
  session.checkpoint = train::newest_good_checkpoint(mpi.world(), root, log);
  if (!session.checkpoint && config.run.resume == train::Resume::kMust) {
    throw comm::AgreedError(
        ExitCode::kCheckpoint,
        fmt::format(
            "there is no checkpoint in {}, and run.resume is must; set it to auto to begin anew",
            root.string()));
  }
}

train::Plan make_plan(comm::MpiSession& mpi, const Session& session) {
  std::optional<train::Plan> plan;
  comm::agree(mpi.world(), [&] {
    const train::VirtualGrid stored =
        session.checkpoint ? train::virtual_grid_of(*session.checkpoint) : train::VirtualGrid();
    plan = train::prepare(session.config, mpi.world().size(), session.train_data->info(), stored);
    if (session.test_data) {
      train::require_fits(*plan, session.test_data->info());
    }
  });
  comm::check_same_plan(mpi.world(), train::plan_items(*plan, config_text(plan->config)));
  return std::move(*plan);
}

void make_run_directory(comm::MpiSession& mpi, const train::RunConfig& config, Log& log) {
  comm::agree(mpi.world(), [&] {
    if (mpi.world().rank() != 0) {
      return;
    }
    std::error_code error;
    std::filesystem::create_directories(train::checkpoint_root(config), error);
    if (error) {
      fail(ExitCode::kUsage, "cannot make the directory {}: {}; choose another run.dir",
           config.run.dir, error.message());
    }
    log.open_file((std::filesystem::path(config.run.dir) / "log.txt").string());
  });
}

/// Bytes of mapped files among this process's resident memory: libraries and the shards of data
/// sets.
std::int64_t mapped_file_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::int64_t kibibytes = 0;
    if (line.rfind("RssFile:", 0) == 0 &&
        parse_int64(split_words(line.substr(8)).front(), kibibytes)) {
      return kibibytes * 1024;
    }
  }
  return 0;
}

void log_peak_memory(comm::MpiSession& mpi, Log& log) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const std::vector<std::int64_t> mine{usage.ru_maxrss * 1024, mapped_file_bytes()};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(mpi.world().size()));
  mpi.world().all_gather(comm::payload_of(std::span(mine)), comm::payload_of(std::span(all)));
  std::size_t largest = 0;
  for (std::size_t i = 2; i < all.size(); i += 2) {
    largest = all[i] > all[largest] ? i : largest;
  }
  log.info("peak memory of a rank: {}; {} of it mapped files, which the system can take back",
           bytes_text(all[largest]), bytes_text(all[largest + 1]));
}

Log::Voice voice_of(comm::MpiSession& mpi) {
  return mpi.world().rank() == 0 ? Log::Voice::kSpeak : Log::Voice::kSilent;
}

/// The config file's name and the settings, "--dry-run" taken out.
struct TrainArguments {
  std::string config;
  std::vector<std::string> settings;
  bool dry_run = false;
};

TrainArguments take_arguments(Arguments arguments, std::string_view command) {
  TrainArguments result;
  for (const std::string& argument : arguments) {
    if (argument == "--dry-run" && command == "train") {
      result.dry_run = true;
    } else if (result.config.empty() && argument.rfind("--", 0) != 0) {
      result.config = argument;
    } else {
      result.settings.push_back(argument);
    }
  }
  if (result.config.empty()) {
    fail(ExitCode::kUsage,
         "strata {} needs a config file: strata {} CONFIG.ini [--section.key=value ...]", command,
         command);
  }
  return result;
}

}  // namespace

ExitCode train_command(comm::MpiSession& mpi, Arguments arguments) {
  Log log(voice_of(mpi));
  TrainArguments given;
  comm::agree(mpi.world(), [&] { given = take_arguments(arguments, "train"); });
  Session session = open_session(mpi, given.config, given.settings);
  if (!given.dry_run || session.config.run.resume != train::Resume::kNever) {
    take_up_run_directory(mpi, session, log);
  }
  const train::Plan plan = make_plan(mpi, session);
  if (given.dry_run) {
    log.info("{}", train::plan_text(plan));
    return ExitCode::kDone;
  }
  make_run_directory(mpi, plan.config, log);
  log.info("{}", train::plan_text(plan));
  log.info("{} on {} ranks ({}), {} thread{} each", name_of(device::DeviceKind::kCpu),
           mpi.world().size(), comm::MpiSession::library_text(), session.threads,
           session.threads == 1 ? "" : "s");

  train::install_stop_signals();
  ops::Context context(session.threads);
  comm::Groups groups = comm::make_groups(mpi.world(), plan.grid);
  const train::Outcome outcome =
      train::train({.plan = plan,
                    .groups = groups,
                    .context = context,
                    .train_data = *session.train_data,
                    .test_data = session.test_data ? &*session.test_data : nullptr,
                    .checkpoint = session.checkpoint ? &*session.checkpoint : nullptr,
                    .config_text = config_text(plan.config),
                    .log = log});
  log_peak_memory(mpi, log);
  return outcome == train::Outcome::kFinished ? ExitCode::kDone : ExitCode::kStoppedEarly;
}

ExitCode evaluate_command(comm::MpiSession& mpi, Arguments arguments) {
  Log log(voice_of(mpi));
  TrainArguments given;
  comm::agree(mpi.world(), [&] { given = take_arguments(arguments, "evaluate"); });
  Session session = open_session(mpi, given.config, given.settings);
  const io::Dataset& data = session.test_data ? *session.test_data : *session.train_data;
  const std::filesystem::path root = train::checkpoint_root(session.config);
  session.checkpoint = train::newest_good_checkpoint(mpi.world(), root, log);
  if (!session.checkpoint) {
    throw comm::AgreedError(
        ExitCode::kCheckpoint,
        fmt::format("there is no checkpoint in {}; train first, or set run.dir", root.string()));
  }
  const train::Plan plan = make_plan(mpi, session);
  ops::Context context(session.threads);
  comm::Groups groups = comm::make_groups(mpi.world(), plan.grid);
  const train::RankPlan rank = train::rank_plan(plan, mpi.world().rank());
  std::optional<train::StageState> state;
  comm::agree(mpi.world(), [&] {
    train::require_same_model(plan, *session.checkpoint);
    state.emplace(context, plan, rank, groups);
    state->load_weights(*session.checkpoint);
  });
  pipeline::Executor executor(state->stage(), *groups.pipeline);
  const train::EvaluationResult result = train::evaluate(plan, rank, groups, executor, data);
  if (mpi.world().rank() == 0) {
    fmt::print("{}: {} of {}\n", session.checkpoint->directory().string(),
               train::text_of(plan, result), data.info().path.string());
  }
  return ExitCode::kDone;
}

}  // namespace strata::app
