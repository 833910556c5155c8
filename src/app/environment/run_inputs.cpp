#include "environment/run_inputs.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/comm/values.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/exchange/model_files.hpp"
#include "strata/forecast/grid_search.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/evaluation_history.hpp"

#include "environment/cpu_cores.hpp"
#include "environment/execution_environment.hpp"
#include "environment/placement.hpp"

namespace strata::app {
namespace {

io::Dataset with_warning(io::Dataset data, Log& log) {
  if (!data.warning().empty()) {
    log.warn("{}", data.warning());
  }
  return data;
}

/// Finds what the model needs of a text's documents. Returns: what a user should know of them;
/// mostly empty.
std::string documents_text(const plan::Plan& plan, const io::Dataset& data) {
  if (plan::separates_documents(plan)) {
    static_cast<void>(data.documents());
  }
  const io::DatasetInfo& info = data.info();
  if (info.task == io::Task::kNextToken && info.counted_tokens == 0) {
    fail(ExitCode::kData,
         "no token of {} counts as a target, so there is nothing to learn; import it anew with "
         "other --roles",
         info.path.string());
  }
  std::vector<std::string> facts;
  if (!info.mixture.empty()) {
    std::vector<std::string> times;
    for (std::int64_t set = 0; set < data.mixture()->sets(); ++set) {
      times.push_back(
          fmt::format("{:.2f}", data.mixture()->share(set) * static_cast<double>(info.samples) /
                                    static_cast<double>(data.samples_of(set).count())));
    }
    facts.push_back(fmt::format("and others, with {} of the samples; an epoch reads them {} times",
                                info.mixture, fmt::join(times, ", ")));
  }
  if (info.packed_inputs > 0) {
    const auto all = static_cast<double>(info.samples * info.input_shape[0]);
    facts.push_back(fmt::format("{} documents in {} samples of {} tokens, {:.1f} % of them padding",
                                count_text(std::ssize(data.documents().ends)),
                                count_text(info.samples), count_text(info.input_shape[0]),
                                100.0 * (1.0 - static_cast<double>(info.packed_inputs) / all)));
  }
  if (info.counted_tokens < info.tokens) {
    facts.push_back(fmt::format(
        "{:.1f} % of its tokens count as targets",
        100.0 * static_cast<double>(info.counted_tokens) / static_cast<double>(info.tokens)));
  }
  return facts.empty() ? "" : fmt::format("{}: {}", info.path.string(), fmt::join(facts, "; "));
}

void open_training_data(RunInputs& inputs, DataNeeded needed, Log& log) {
  if (!inputs.config.data.train.empty()) {
    inputs.train_data = with_warning(plan::open_train_data(inputs.config), log);
    inputs.train_info = inputs.train_data->info();
    return;
  }
  if (needed == DataNeeded::kYes) {
    fail(ExitCode::kUsage,
         "data.train is empty; make a data set with \"strata data import\" and name its train.h5");
  }
  inputs.train_info = plan::assumed_data(inputs.config);
}

/// Takes the config and the number of threads.
void take_config(comm::MpiSession& mpi, RunInputs& inputs, config::GivenConfig given) {
  inputs.config = std::move(given.config);
  inputs.origins = std::move(given.origins);
  // Counted once, which takes 4 ms: a verification opens inputs for each stretch.
  static const int kOwnThreads = default_threads(mpi.ranks_on_node());
  inputs.threads =
      inputs.config.run.threads > 0 ? static_cast<int>(inputs.config.run.threads) : kOwnThreads;
}

/// Names the ranks and nodes that fail to open data which others open.
std::string data_failures(const comm::AgreedError& error, std::span<const std::string> hosts) {
  std::map<std::string, std::vector<std::size_t>> ranks;
  for (std::size_t r = 0; r < error.by_rank().size(); ++r) {
    ranks[error.by_rank()[r]].push_back(r);
  }
  std::string text;
  for (const auto& [failure, members] : ranks) {
    if (!failure.empty()) {
      std::set<std::string> nodes;
      for (const std::size_t r : members) {
        nodes.insert(hosts[r]);
      }
      text += fmt::format("{} on {}: {}; ", ranks_text(members), fmt::join(nodes, ", "), failure);
    }
  }
  return text +
         "the other ranks could open it: every node needs the same files under the same path";
}

/// Runs the step that opens the inputs, and checks that all ranks have the same ones, before any
/// setting chooses a branch.
void open_same_inputs(comm::MpiSession& mpi, const RunInputs& inputs,
                      const std::function<void()>& step) {
  try {
    comm::agree_plan(mpi.world(), [&]() -> std::vector<comm::PlanItem> {
      step();
      mpi.world().set_timeout({.seconds = inputs.config.run.timeout_seconds});
      return {{"config", hash_of(config::config_text(inputs.config))},
              {"training data", inputs.train_info.checksum},
              {"test data", inputs.test_data ? inputs.test_data->info().checksum : 0}};
    });
  } catch (const comm::AgreedError& error) {
    if (error.code() == ExitCode::kData && std::ranges::count(error.by_rank(), "") > 0) {
      throw comm::AgreedError(error.code(), data_failures(error, mpi.hosts()));
    }
    throw;
  }
}

/// Opens a valid checkpoint of run.dir.
void open_trained_checkpoint(comm::MpiSession& mpi, RunInputs& inputs, WhichCheckpoint which,
                             Log& log) {
  if (which == WhichCheckpoint::kBest) {
    inputs.checkpoint = train::best_good_checkpoint(mpi.world(), inputs.config, log);
    return;
  }
  const std::filesystem::path root = train::checkpoint_root(inputs.config);
  inputs.checkpoint = train::newest_good_checkpoint(mpi.world(), root, log);
  if (!inputs.checkpoint) {
    throw comm::AgreedError(
        ExitCode::kCheckpoint,
        fmt::format("there is no checkpoint in {}; train first, or set run.dir", root.string()));
  }
}

/// Reads the description of the training data from the checkpoint; opens the data for a checkpoint
/// of an earlier version.
void open_data_of_checkpoint(RunInputs& inputs, Log& log) {
  std::optional<io::DatasetInfo> info = train::data_of(*inputs.checkpoint);
  if (!info) {
    open_training_data(inputs, DataNeeded::kYes, log);
    return;
  }
  if (info->task == io::Task::kNextToken) {
    info->input_shape = info->target_shape = {plan::context_of(inputs.config)};
  }
  inputs.train_info = std::move(*info);
}

/// Opens the data to evaluate on: data.test, else data.train.
void open_evaluated_data(RunInputs& inputs, Log& log) {
  const config::RunConfig& config = inputs.config;
  if (config.data.test.empty() && config.data.train.empty()) {
    fail(ExitCode::kUsage,
         "data.test and data.train are empty; name a data set, as in --data.test=DIR/test.h5");
  }
  inputs.test_data =
      with_warning(config.data.test.empty() ? plan::open_train_data(config)
                                            : plan::open_test_data(config, config.data.test),
                   log);
}

/// Tells where the command line asks for another grid than an evaluation has; its results are those
/// of any grid.
void tell_of_other_grid(config::Arguments settings, const config::RunConfig& config,
                        const plan::VirtualGrid& stored, Log& log) {
  const auto& chosen = config.parallel;
  for (const auto& [key, value] :
       {std::pair{"parallel.data", chosen.data}, std::pair{"parallel.pipeline", chosen.pipeline},
        std::pair{"parallel.tensor", chosen.tensor}}) {
    const std::string option = fmt::format("--{}=", key);
    for (const std::string& setting : settings) {
      std::int64_t asked = 0;
      if (setting.starts_with(option) && parse_int64(setting.substr(option.size()), asked) &&
          asked != 0 && asked != value) {
        log.warn(
            "{} = {} does not fit these ranks and the checkpoint's {} lanes and {} shards: they "
            "are {} data x {} pipeline x {} tensor",
            key, asked, stored.lanes, stored.shards, chosen.data, chosen.pipeline, chosen.tensor);
      }
    }
  }
}

}  // namespace

bool consents_to_other_numbers(config::Arguments settings) {
  return std::ranges::any_of(settings, [](const std::string& setting) {
    return setting.starts_with("--numerics.lanes=") || setting.starts_with("--numerics.shards=");
  });
}

plan::VirtualGrid stored_grid(const RunInputs& inputs) {
  if (!inputs.checkpoint) {
    return inputs.replayed.value_or(plan::VirtualGrid{});
  }
  plan::VirtualGrid stored = train::virtual_grid_of(*inputs.checkpoint);
  stored.consent = inputs.consent;
  return stored;
}

config::GivenConfig read_run_config(const std::string& path, config::Arguments settings) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return config::read_config(path, settings);
  }
  // The directory may have been moved since its config was written.
  std::vector<std::string> all{"--run.dir=" + path};
  all.insert(all.end(), settings.begin(), settings.end());
  return config::read_config((std::filesystem::path(path) / "config.ini").string(), all);
}

RunInputs open_run_inputs(comm::MpiSession& mpi, const std::string& path,
                          config::Arguments settings, DataNeeded data, Log& log) {
  RunInputs inputs;
  open_same_inputs(mpi, inputs, [&] {
    take_config(mpi, inputs, config::read_config(path, settings));
    inputs.consent = consents_to_other_numbers(settings);
    open_training_data(inputs, data, log);
    if (!inputs.config.data.test.empty()) {
      inputs.test_data =
          with_warning(plan::open_test_data(inputs.config, inputs.config.data.test), log);
    }
  });
  inputs.device = resolve_device(mpi, inputs.config.run.device);
  return inputs;
}

RunInputs open_trained(comm::MpiSession& mpi, const std::string& path, config::Arguments settings,
                       Evaluates evaluates, WhichCheckpoint which, Log& log) {
  RunInputs inputs;
  // What limits an evaluation within training does not limit this one.
  std::vector<std::string> all{"--train.evaluate_batches=0"};
  all.insert(all.end(), settings.begin(), settings.end());
  open_same_inputs(mpi, inputs, [&] { take_config(mpi, inputs, read_run_config(path, all)); });
  open_trained_checkpoint(mpi, inputs, which, log);
  open_same_inputs(mpi, inputs, [&] {
    open_data_of_checkpoint(inputs, log);
    if (evaluates == Evaluates::kYes) {
      open_evaluated_data(inputs, log);
      if (train::is_imported(*inputs.checkpoint) &&
          inputs.train_info.tokenizer == io::TokenizerKind::kNone) {
        // The import was given no tokenizer: the user answers for the data set.
        inputs.train_info.tokenizer_checksum = inputs.test_data->info().tokenizer_checksum;
      }
    }
    train::keep_settings(*inputs.checkpoint, inputs.config, inputs.origins);
    const plan::VirtualGrid stored = train::virtual_grid_of(*inputs.checkpoint);
    inputs.config =
        plan::evaluation_config(inputs.config, mpi.world().size(), inputs.train_info, stored);
    tell_of_other_grid(settings, inputs.config, stored, log);
    inputs.consent = true;  // lanes change no number of an evaluation
  });
  inputs.device = resolve_device(mpi, inputs.config.run.device);
  return inputs;
}

namespace {

/// Refuses a directory whose config.ini a user wrote: that of the run would replace it.
void require_no_config_of_a_user(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.ini";
  std::error_code ignored;
  std::string line;
  if (std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored)) &&
      std::getline(std::ifstream(path), line) && !line.starts_with(config::kRunConfigHead)) {
    fail(ExitCode::kUsage,
         "{} is not of a run, and a run would replace it with all its settings: give the file "
         "another name, or choose another run.dir",
         path.string());
  }
}

}  // namespace

void open_run_directory(comm::MpiSession& mpi, RunInputs& inputs, Log& log) {
  const config::RunConfig& config = inputs.config;
  const std::filesystem::path root = train::checkpoint_root(config);
  comm::agree_on_first(mpi.world(), [&] {
    if (io::list_checkpoints(root).empty()) {
      require_no_config_of_a_user(config.run.dir);
    }
  });
  if (config.run.resume == config::Resume::kNever) {
    comm::agree_on_first(mpi.world(), [&] {
      const std::filesystem::path dir(config.run.dir);
      if (std::filesystem::exists(dir / "config.ini") ||
          std::filesystem::exists(dir / "metrics.jsonl") || !io::list_checkpoints(root).empty()) {
        fail(
            ExitCode::kUsage,
            "{} holds a run already; continue it with --run.resume=auto, or choose another run.dir",
            config.run.dir);
      }
    });
    return;
  }
  inputs.checkpoint = train::newest_good_checkpoint(mpi.world(), root, log);
  if (!inputs.checkpoint && config.run.resume == config::Resume::kMust) {
    throw comm::AgreedError(ExitCode::kCheckpoint,
                            fmt::format("there is no checkpoint in {}, and run.resume is must; set "
                                        "it to auto to start a new run",
                                        root.string()));
  }
  if (inputs.checkpoint) {
    comm::agree(mpi.world(),
                [&] { train::keep_settings(*inputs.checkpoint, inputs.config, inputs.origins); });
  }
}

void open_initial(comm::MpiSession& mpi, RunInputs& inputs, Log& log) {
  if (!inputs.checkpoint && !inputs.config.checkpoint.init.empty()) {
    inputs.initial = train::initial_checkpoint(mpi.world(), inputs.config.checkpoint.init, log);
  }
}

std::int64_t ranks_of_nodes(std::span<const std::string> hosts) {
  const auto count = std::max<std::ptrdiff_t>(1, std::ranges::count(hosts, hosts.front()));
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const auto first = static_cast<std::size_t>(static_cast<std::int64_t>(r) / count * count);
    if (hosts[r] != hosts[first] || std::ranges::count(hosts, hosts[r]) != count) {
      return 1;
    }
  }
  return count;
}

namespace {

/// Settings that the user gave, and a search keeps; a grid of 0 is not given.
std::set<std::string> given_settings(const RunInputs& inputs) {
  std::set<std::string> given;
  for (const auto& [key, origin] : inputs.origins) {
    if (origin == config::Origin::kGiven) {
      given.insert(key);
    }
  }
  return given;
}

/// The config with the fastest grid on run.machine, where parallel.* asks for one.
config::RunConfig launch_config(const RunInputs& inputs, std::int64_t ranks,
                                std::int64_t node_ranks, const plan::VirtualGrid& stored) {
  const config::RunConfig& config = inputs.config;
  if (config.run.machine.empty() || ranks == 0 ||
      (config.parallel.pipeline != 0 && config.parallel.tensor != 0)) {
    return config;
  }
  const forecast::Machine machine = forecast::read_machine(config.run.machine);
  forecast::Forecaster forecaster(machine);
  const forecast::SearchResult found = forecast::search_grids(forecaster, config, inputs.train_info,
                                                              {.ranks = ranks,
                                                               .node_ranks = node_ranks,
                                                               .device = inputs.device,
                                                               .stored = stored,
                                                               .fixed = given_settings(inputs)});
  return found.choices.front().config;
}

/// Weights that were learned in units of targets go on in these, unless the config asks for others.
void keep_target_units(const RunInputs& inputs, plan::Plan& plan) {
  const io::TargetUnits asked = inputs.config.data.targets;
  std::optional<io::DatasetInfo> learned;
  if (inputs.checkpoint) {
    learned = train::data_of(*inputs.checkpoint);
  } else if (inputs.initial) {
    learned = train::initial_names(plan, *inputs.initial).data;
  }
  if (!learned || learned->task != io::Task::kRegression) {
    return;
  }
  // The resolved config of a run names the kind of its units.
  const io::TargetUnits kind =
      learned->target_mean.empty() ? io::TargetUnits::kNone : io::TargetUnits::kStandard;
  if (asked == io::TargetUnits::kAuto || (inputs.checkpoint && asked == kind)) {
    plan::set_target_units(plan, learned->target_mean, learned->target_deviation);
  }
}

}  // namespace

plan::Plan make_plan(comm::MpiSession& mpi, const RunInputs& inputs, std::int64_t ranks) {
  std::optional<plan::Plan> plan;
  comm::agree_plan(mpi.world(), [&] {
    const plan::VirtualGrid stored = stored_grid(inputs);
    const std::int64_t node_ranks = ranks_of_nodes(mpi.hosts());
    plan = plan::prepare(launch_config(inputs, ranks, node_ranks, stored), ranks, inputs.train_info,
                         stored, inputs.device);
    keep_target_units(inputs, *plan);
    plan::set_node_ranks(*plan, node_ranks);
    if (inputs.initial) {
      train::require_initial(*plan, *inputs.initial);
    }
    return plan::plan_items(*plan, config::config_text(plan->config));
  });
  return std::move(*plan);
}

namespace {

/// Keeps the template of dialogues that the weights learned where the training data have none.
/// Returns: a line where the data have another; mostly empty.
std::string keep_chat_template(const RunInputs& inputs, plan::Plan& plan) {
  const std::optional<io::Checkpoint>& from =
      inputs.checkpoint ? inputs.checkpoint : inputs.initial;
  if (!inputs.train_data || !from || plan.train_data.task != io::Task::kNextToken ||
      (!inputs.checkpoint && !train::keeps_token_ids(plan, *from))) {
    return "";
  }
  const std::string learned = exchange::learned_template(*from).name;
  std::string& own = plan.train_data.chat_template;
  if (own.empty()) {
    own = learned;
  }
  return learned.empty() || own == learned
             ? ""
             : fmt::format(
                   "the dialogues of {} have the template {}, the model of {} learned {}: from "
                   "here "
                   "on it learns the former",
                   plan.train_data.path.string(), own, from->directory().string(), learned);
}

}  // namespace

std::vector<std::string> match_data(comm::MpiSession& mpi, RunInputs& inputs, plan::Plan& plan) {
  std::vector<std::string> lines;
  comm::agree(mpi.world(), [&] {
    const auto match = [&](io::Dataset& data, const train::NamesOfCheckpoint& names) {
      std::string line = data.match_names(names.data, names.advice);
      if (!line.empty()) {
        lines.push_back(std::move(line));
      }
    };
    if (inputs.train_data && inputs.checkpoint) {
      if (const auto learned = train::data_of(*inputs.checkpoint)) {
        match(*inputs.train_data,
              {*learned, "go on with the data set of the run, or choose another run.dir"});
      }
    } else if (inputs.train_data && inputs.initial) {
      match(*inputs.train_data, train::initial_names(plan, *inputs.initial));
    }
    if (inputs.train_data) {
      const io::DatasetInfo planned = plan.train_data;
      plan.train_data = inputs.train_info = inputs.train_data->info();
      plan::set_target_units(plan, planned.target_mean, planned.target_deviation);
    }
    if (std::string line = keep_chat_template(inputs, plan); !line.empty()) {
      lines.push_back(std::move(line));
    }
    if (inputs.test_data) {
      match(
          *inputs.test_data,
          {inputs.train_info, "give test data with the columns and classes that the model learns"});
      train::require_fits(plan, inputs.test_data->info());
    }
    for (const std::optional<io::Dataset>* const data : {&inputs.train_data, &inputs.test_data}) {
      if (std::string line = *data ? documents_text(plan, **data) : ""; !line.empty()) {
        lines.push_back(std::move(line));
      }
    }
  });
  return lines;
}

WhichCheckpoint which_checkpoint(const config::CommandLine& line) {
  return line.choice<WhichCheckpoint>("checkpoint").value_or(WhichCheckpoint::kNewest);
}

namespace {

/// The checkpoint directory that the command line names, or a checkpoint of a run's directory.
std::filesystem::path checkpoint_directory(const config::CommandLine& line) {
  std::filesystem::path path(line.positions().front());
  if (which_checkpoint(line) == WhichCheckpoint::kBest) {
    const config::GivenConfig given = config::read_config((path / "config.ini").string(), {});
    return train::best_checkpoint(path, given.config.checkpoint.best).directory;
  }
  for (const std::filesystem::path& root : {path / "checkpoints", path}) {
    const std::vector<io::CheckpointEntry> entries = io::list_checkpoints(root);
    if (!entries.empty()) {
      return entries.front().directory;
    }
  }
  return path;
}

}  // namespace

io::Checkpoint open_checkpoint(const config::CommandLine& line) {
  io::Checkpoint checkpoint = io::Checkpoint::open(checkpoint_directory(line));
  if (!checkpoint.warning().empty()) {
    print_error(fmt::format("warning: {}\n", printable_lines(checkpoint.warning())));
  }
  return checkpoint;
}

Log::Output log_role(comm::MpiSession& mpi) {
  return mpi.world().rank() == 0 ? Log::Output::kPrint : Log::Output::kSilent;
}

}  // namespace strata::app
