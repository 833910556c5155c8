#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/comm/values.hpp"
#include "strata/config/config_file.hpp"
#include "strata/config/options.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/forecast/forecast.hpp"
#include "strata/plan/memory_fit.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/stop_signal.hpp"
#include "strata/train/trainer.hpp"

#include "commands/commands.hpp"
#include "environment/execution_environment.hpp"
#include "environment/placement.hpp"
#include "environment/run_directory.hpp"
#include "environment/run_inputs.hpp"
#include "environment/time_limit.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

/// The text of the run's config.ini: resolved values for settings that determine the numbers, given
/// values for settings that depend on the launch.
std::string run_config_text(const RunInputs& inputs, const plan::Plan& plan,
                            const ExecutionEnvironment& environment) {
  const config::RunConfig& given = inputs.config;
  config::RunConfig resolved = plan.config;
  std::map<std::string, std::string> launch;
  const auto choose = [&](bool is_open, const char* key, const auto& value) {
    if (is_open) {
      launch[key] = fmt::format("{}", value);
    }
  };
  resolved.parallel.data = given.parallel.data;
  resolved.parallel.pipeline = given.parallel.pipeline;
  resolved.parallel.tensor = given.parallel.tensor;
  choose(given.parallel.data == 0, "parallel.data", plan.grid.data);
  choose(given.parallel.pipeline == 0, "parallel.pipeline", plan.grid.pipeline);
  choose(given.parallel.tensor == 0, "parallel.tensor", plan.grid.tensor);
  if (plan.config.numerics.mode == comm::Summation::kLibrary) {
    resolved.numerics.lanes = given.numerics.lanes;
    resolved.numerics.shards = given.numerics.shards;
    choose(true, "numerics.lanes", plan.config.numerics.lanes);
    choose(true, "numerics.shards", plan.config.numerics.shards);
  }
  choose(given.parallel.node_ranks == 0, "parallel.node_ranks",
         plan.node_replicas * plan.grid.tensor);
  std::vector<std::int64_t> first_layers;
  std::ranges::transform(plan.split.stages, std::back_inserter(first_layers), &grid::Range::begin);
  choose(given.parallel.split == "auto", "parallel.split",
         fmt::format("{}", fmt::join(first_layers, ",")));
  choose(given.train.steps == 0, "train.steps", plan.total_steps);
  choose(given.train.steps != 0, "train.epochs",
         fmt::format("{:.2f}", static_cast<double>(plan.total_steps) *
                                   static_cast<double>(given.batch.global) /
                                   static_cast<double>(plan.train_data.samples)));
  choose(plan::is_language_model(plan) && resolved.model.transformer.vocabulary == 0,
         "model.vocabulary", plan.train_data.classes);
  choose(given.run.threads == 0, "run.threads", inputs.threads);
  choose(!given.run.device, "run.device", name_of(plan.device));
  choose(given.run.peak_tflops == 0.0 && environment.peak_flops() > 0.0, "run.peak_tflops",
         environment.peak_flops() / 1e12);
  return config::resolved_config_text({.config = given, .origins = inputs.origins}, resolved,
                                      launch);
}

/// When the run must have ended, of now_seconds().
double end_of(const config::RunConfig& config, double started, Log& log) {
  double end = std::numeric_limits<double>::infinity();
  if (config.run.time_limit_minutes > 0.0) {
    end = started + 60.0 * config.run.time_limit_minutes;
  }
  if (const std::optional<double> left = allocation_seconds_left()) {
    end = std::min(end, now_seconds() + *left);
  }
  if (std::isfinite(end)) {
    log.info("time limit: in {}; the run stops before, with a checkpoint",
             duration_text(std::max(0.0, end - now_seconds())));
  }
  return end;
}

/// What metrics.jsonl records of this start.
nlohmann::ordered_json facts_of(const plan::Plan& plan, const RunInputs& inputs,
                                const std::string& nodes, const ExecutionEnvironment& environment) {
  std::int64_t planned_bytes = 0;
  for (const plan::RankPlan& rank : plan::largest_rank_plans(plan)) {
    planned_bytes = std::max(planned_bytes, plan::device_bytes(rank));
  }
  return {{"version", own_version()},
          {"nodes", nodes},
          {"environment", environment.text()},
          {"grid", plan::grid_line(plan)},
          {"device", name_of(plan.device)},
          {"planned_bytes", planned_bytes},
          {"checkpoint", inputs.checkpoint ? inputs.checkpoint->directory().string() : ""}};
}

/// What a step should take on run.machine, on rank 0; nothing without one, or where it cannot say.
std::optional<train::StepForecast> forecast_of(comm::MpiSession& mpi, const plan::Plan& plan,
                                               Log& log) {
  if (plan.config.run.machine.empty() || mpi.world().rank() != 0) {
    return std::nullopt;
  }
  try {
    const forecast::Machine machine = forecast::read_machine(plan.config.run.machine);
    if (machine.device != plan.device) {
      return std::nullopt;
    }
    forecast::Forecaster forecaster(machine);
    const forecast::Forecast forecast =
        forecaster.forecast(plan, ranks_of_nodes(mpi.hosts()), forecast::Detail::kTotals);
    if (!forecast.fits) {
      return std::nullopt;
    }
    train::StepForecast expected{.machine = machine.name, .times = {.step = forecast.step_seconds}};
    for (const forecast::StepPart& part : forecast.parts) {
      double& account = part.account == forecast::Account::kCompute ? expected.times.compute
                        : part.account == forecast::Account::kBubble
                            ? expected.times.bubble
                            : expected.times.communication.of(grid::Axis::kData);
      account += part.seconds;
    }
    log.info("forecast for {}: {:.3g} s a step", machine.name, forecast.step_seconds);
    return expected;
  } catch (const std::exception& error) {
    log.info("no forecast of a step: {}", error.what());
    return std::nullopt;
  }
}

/// Logs what ranks loaded, and what is wrong with where they run. Communication: collective.
void log_placement(comm::MpiSession& mpi, ExecutionEnvironment& environment, Log& log) {
  Placement mine = find_placement(mpi.ranks_on_node(), environment.context().threads());
  mine.libraries = loaded_libraries();
  const device::Device& device = environment.context().device();
  if (device.kind() == device::DeviceKind::kCuda) {
    const std::vector<device::GpuInfo> gpus = device::gpus();
    place_gpu(mine, gpus[static_cast<std::size_t>(device.index())], std::ssize(gpus));
  }
  const std::vector<Placement> all = gathered(mpi.world(), mine);
  if (mpi.world().rank() != 0) {
    return;
  }
  if (all.size() > 1) {
    log.info("loaded: {}", libraries_text(all.front().libraries));
  }
  for (const std::string& problem : placement_problems(all, Oversubscription::kAccepted)) {
    log.warn("{}", problem);
  }
}

}  // namespace

ExitCode train_model(const config::CommandLine& line, comm::MpiSession& mpi,
                     const config::FailureHandler& on_failure, const train::TrainerHooks& hooks) {
  const double started = now_seconds();
  Log log(log_role(mpi));
  const bool dry_run = line.has("dry-run");
  RunInputs inputs = open_run_inputs(mpi, line.positions().front(), settings_of(line),
                                     dry_run ? DataNeeded::kNo : DataNeeded::kYes, log);
  std::optional<RunDirectory> directory;
  if (!dry_run) {
    directory.emplace(mpi, inputs.config, log);
  }
  if (!dry_run || inputs.config.run.resume != config::Resume::kNever) {
    open_run_directory(mpi, inputs, log);
  }
  open_initial(mpi, inputs, log);
  // A dry run on one rank plans for the grid that will be launched.
  const bool alone = dry_run && mpi.world().size() == 1;
  const std::int64_t asked = line.has("ranks") ? line.count("ranks", 1, 1, config::kMostRanks) : 0;
  plan::Plan plan = make_plan(mpi, inputs, alone ? asked : mpi.world().size());
  for (const std::string& text : match_data(mpi, inputs, plan)) {
    log.info("{}", text);
  }
  if (dry_run) {
    log.info("{}", plan::plan_text(plan));
    return ExitCode::kDone;
  }
  // Before anything is written, because opening the GPU may fail.
  ExecutionEnvironment environment(mpi, inputs, plan, Use::kTraining);
  const std::string other_bits = begin_run(mpi, inputs, plan, log);
  log.info("{}", plan::plan_text(plan));
  const std::string nodes = nodes_text(mpi.hosts());
  log.info("strata {} on {}", own_version(), nodes);
  log.info("{}", environment.text());
  log_placement(mpi, environment, log);
  if (!environment.warning().empty()) {
    log.warn("{}", environment.warning());
  }
  if (const std::string change =
          inputs.checkpoint ? train::data_change(plan, *inputs.checkpoint) : "";
      !change.empty()) {
    log.warn("{}", change);
  }
  if (!other_bits.empty()) {
    log.warn("{}", other_bits);
  }

  const train::Outcome outcome =
      train::train({.plan = plan,
                    .groups = environment.groups(),
                    .context = environment.context(),
                    .train_data = *inputs.train_data,
                    .test_data = inputs.test_data ? &*inputs.test_data : nullptr,
                    .checkpoint = inputs.checkpoint ? &*inputs.checkpoint : nullptr,
                    .initial = inputs.initial ? &*inputs.initial : nullptr,
                    .lock = directory->lock(),
                    .config_text = run_config_text(inputs, plan, environment),
                    .facts = facts_of(plan, inputs, nodes, environment),
                    .environment = receipt_environment(mpi, plan, environment),
                    .peak_flops = environment.peak_flops(),
                    .forecast = forecast_of(mpi, plan, log),
                    .ends = mpi.world().rank() == 0 ? end_of(plan.config, started, log)
                                                    : std::numeric_limits<double>::infinity(),
                    .on_failure = on_failure,
                    .hooks = hooks,
                    .log = log});
  // No message may be in flight when the groups are destroyed.
  environment.groups().world->barrier();
  return outcome == train::Outcome::kFinished ? ExitCode::kDone : ExitCode::kStoppedEarly;
}

Commands train_commands() {
  return {
      {.name = "train",
       .purpose = "train; --run.resume=auto continues",
       .synopses = {{"CONFIG.ini [--ranks=N] [--section.key=value ...] [--dry-run]"}},
       .about =
           R"(Trains on N ranks, or on as many as mpirun or srun started, and writes config.ini, log.txt,
metrics.jsonl and checkpoints into run.dir. A setting on the command line overrides the file's. If one is given twice,
the last counts.)",
       .options = {{"dry-run", "",
                    "prints the plan without training; alone, for --ranks or for the grid that the "
                    "settings name"}},
       .lists = {{"Examples",
                  {{"strata train CONFIG.ini --ranks=4", "on this machine, whatever its cores"},
                   {"strata train CONFIG.ini --run.resume=auto",
                    "continues from the newest good checkpoint, on any grid"}}}},
       .settings = config::TakesSettings::kListed,
       .positions = config::Positions::kSome,
       .needs = "a config file",
       .on_ranks = [](const auto& line, comm::MpiSession& mpi,
                      const auto& on_failure) { return train_model(line, mpi, on_failure, {}); },
       .before_mpi =
           [] {
             // Training goes on after a closed pipe, and stops in order during its set-up too.
             std::signal(SIGPIPE, SIG_IGN);
             train::install_stop_signals();
           }}};
}

}  // namespace strata::app
