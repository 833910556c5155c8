#include "environment/run_inputs.hpp"

#include <algorithm>
#include <filesystem>

#include "strata/app/config_file.hpp"
#include "strata/comm/agree.hpp"
#include "strata/core/hash.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"

#include "environment/cpu_cores.hpp"
#include "environment/execution_environment.hpp"

namespace strata::app {
namespace {

io::Dataset open_data(const plan::RunConfig& config, const std::string& master) {
  io::Dataset data = io::Dataset::open(master);
  if (data.info().task == io::Task::kNextToken) {
    data.set_context(plan::context_of(config));
  }
  return data;
}

void open_training_data(Session& session, DataNeeded needed) {
  if (!session.config.data.train.empty()) {
    session.train_data = open_data(session.config, session.config.data.train);
    session.train_info = session.train_data->info();
    return;
  }
  if (needed == DataNeeded::kYes) {
    fail(ExitCode::kUsage,
         "data.train is empty; make a data set with \"strata data import\" and name its train.h5");
  }
  session.train_info = plan::assumed_data(session.config);
}

}  // namespace

Session open_session(comm::MpiSession& mpi, const std::string& path, Arguments settings,
                     DataNeeded needed, Splits splits) {
  Session session;
  comm::agree(mpi.world(), [&] {
    session.config = read_config(path, settings);
    open_training_data(session, needed);
    if (splits == Splits::kTrainAndTest && !session.config.data.test.empty()) {
      session.test_data = open_data(session.config, session.config.data.test);
    }
    session.threads = session.config.run.threads > 0 ? static_cast<int>(session.config.run.threads)
                                                     : default_threads(mpi.ranks_on_node());
  });
  mpi.world().set_patience({.seconds = session.config.run.patience_seconds});
  // Before anything that a setting may branch on.
  comm::check_same_plan(
      mpi.world(), {{"config", hash_of(config_text(session.config))},
                    {"training data", session.train_info.checksum},
                    {"test data", session.test_data ? session.test_data->info().checksum : 0}});
  session.device = decide_device(mpi, session.config.run.device);
  return session;
}

void open_checkpoint(comm::MpiSession& mpi, Session& session, Log& log) {
  const std::filesystem::path root = train::checkpoint_root(session.config);
  session.checkpoint = train::newest_good_checkpoint(mpi.world(), root, log);
  if (!session.checkpoint) {
    throw comm::AgreedError(
        ExitCode::kCheckpoint,
        fmt::format("there is no checkpoint in {}; train first, or set run.dir", root.string()));
  }
}

void take_up_run_directory(comm::MpiSession& mpi, Session& session, Log& log) {
  const plan::RunConfig& config = session.config;
  const std::filesystem::path root = train::checkpoint_root(config);
  if (config.run.resume == plan::Resume::kNever) {
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
  if (!session.checkpoint && config.run.resume == plan::Resume::kMust) {
    throw comm::AgreedError(
        ExitCode::kCheckpoint,
        fmt::format(
            "there is no checkpoint in {}, and run.resume is must; set it to auto to begin anew",
            root.string()));
  }
}

plan::Plan make_plan(comm::MpiSession& mpi, const Session& session, std::int64_t ranks) {
  std::optional<plan::Plan> plan;
  comm::agree(mpi.world(), [&] {
    const plan::VirtualGrid stored =
        session.checkpoint ? train::virtual_grid_of(*session.checkpoint) : plan::VirtualGrid();
    plan = plan::prepare(session.config, ranks, session.train_info, stored, session.device);
    if (session.test_data) {
      train::require_fits(*plan, session.test_data->info());
    }
  });
  comm::check_same_plan(mpi.world(), plan::plan_items(*plan, config_text(plan->config)));
  return std::move(*plan);
}

TrainArguments take_arguments(Arguments arguments, std::string_view command) {
  constexpr std::string_view kConfusion = "--confusion=";
  TrainArguments result;
  for (const std::string& argument : arguments) {
    if (argument == "--dry-run" && command == "train") {
      result.dry_run = true;
    } else if (argument == "--classes" && command == "evaluate") {
      result.each_class = true;
    } else if (argument.starts_with("--confusion") && command == "evaluate") {
      result.confusion = argument.substr(std::min(argument.size(), kConfusion.size()));
      if (!argument.starts_with(kConfusion) || result.confusion.empty()) {
        fail(ExitCode::kUsage, "{} names no file; give --confusion=FILE.csv", argument);
      }
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

Log::Voice voice_of(comm::MpiSession& mpi) {
  return mpi.world().rank() == 0 ? Log::Voice::kSpeak : Log::Voice::kSilent;
}

}  // namespace strata::app
