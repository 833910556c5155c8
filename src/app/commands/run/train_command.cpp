#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/comm/values.hpp"
#include "strata/config/config_file.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/text.hpp"
#include "strata/plan/memory_fit.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/evaluation.hpp"
#include "strata/train/file_timeout.hpp"
#include "strata/train/rank_state.hpp"
#include "strata/train/stop_signal.hpp"
#include "strata/train/trainer.hpp"

#include "commands/commands.hpp"
#include "environment/execution_environment.hpp"
#include "environment/rank_launcher.hpp"
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

/// As in "2 nodes: n1, n2", of the ranks' hosts.
std::string nodes_text(const std::vector<std::string>& hosts) {
  constexpr std::size_t kMostNamed = 16;
  std::vector<std::string> nodes;
  for (const std::string& host : hosts) {
    if (std::ranges::find(nodes, host) == nodes.end()) {
      nodes.push_back(host);
    }
  }
  return fmt::format(
      "{} node{}: {}{}", nodes.size(), nodes.size() == 1 ? "" : "s",
      fmt::join(nodes.begin(),
                nodes.begin() + static_cast<std::ptrdiff_t>(std::min(nodes.size(), kMostNamed)),
                ", "),
      nodes.size() > kMostNamed ? ", ..." : "");
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

/// The settings; read_config() refuses further positions among them.
std::vector<std::string> settings_of(const config::CommandLine& line) {
  std::vector<std::string> settings = line.settings();
  settings.insert(settings.end(), line.positions().begin() + 1, line.positions().end());
  return settings;
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
  const std::int64_t asked = line.has("ranks") ? line.count("ranks", 1, 1, kMostRanks) : 0;
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
  if (!environment.warning().empty()) {
    log.warn("{}", environment.warning());
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
                    .peak_flops = environment.peak_flops(),
                    .ends = mpi.world().rank() == 0 ? end_of(plan.config, started, log)
                                                    : std::numeric_limits<double>::infinity(),
                    .on_failure = on_failure,
                    .hooks = hooks,
                    .log = log});
  // No message may be in flight when the groups are destroyed.
  environment.groups().world->barrier();
  return outcome == train::Outcome::kFinished ? ExitCode::kDone : ExitCode::kStoppedEarly;
}

namespace {

/// Counters of a classifier's predictions, where they can be counted. Throws: Error(kUsage) where
/// they are requested but cannot be counted.
std::optional<train::ClassCounts> counts_for(const plan::Plan& plan,
                                             const config::CommandLine& line) {
  // The confusion matrix takes memory quadratic in the classes.
  constexpr std::int64_t kMostByDefault = 1000;
  constexpr std::int64_t kMost = 10000;
  const bool requested = line.has("classes") || line.has("confusion");
  const std::int64_t classes = plan.train_data.classes;
  if (train::counts_classes(plan) && classes <= (requested ? kMost : kMostByDefault)) {
    return train::ClassCounts(classes);
  }
  if (requested && train::counts_classes(plan)) {
    fail(ExitCode::kUsage,
         "--classes and --confusion take at most {} classes, the data set has {}; leave them out",
         kMost, classes);
  }
  if (requested) {
    fail(ExitCode::kUsage,
         "--classes and --confusion need a classifier whose last layer is not split; leave them "
         "out, or end the model with a layer without parallel=column");
  }
  return std::nullopt;
}

/// Prints the result with all digits, so that numbers read back to the same bits.
void print_result(const RunInputs& inputs, const plan::Plan& plan,
                  const train::EvaluationResult& result,
                  const std::optional<train::ClassCounts>& counts,
                  const config::CommandLine& line) {
  const io::Dataset& data = *inputs.test_data;
  std::string text = fmt::format("loss {}", result.loss);
  if (plan::is_language_model(plan)) {
    text += fmt::format(", perplexity {:.6g}", std::exp(result.loss));
  }
  if (plan.model->loss() == nn::LossKind::kCrossEntropy) {
    text += fmt::format(", accuracy {:.4f} %", 100.0 * result.accuracy);
  }
  if (counts && counts->classes() > train::ClassCounts::kFirst) {
    text += fmt::format(", top-{} {:.4f} %", train::ClassCounts::kFirst,
                        100.0 * counts->accuracy_in_first());
  }
  fmt::print("{}: {} over {} samples of {}\n", inputs.checkpoint->directory().string(), text,
             result.samples, data.info().path.string());
  const std::vector<std::string>& names = plan.train_data.class_names;
  if (line.has("classes")) {
    fmt::print("{}", train::class_table(*counts, names));
  }
  if (line.has("confusion")) {
    train::write_confusion(*counts, names, line.value("confusion", ""));
  }
}

ExitCode evaluate_model(const config::CommandLine& line, comm::MpiSession& mpi,
                        const config::FailureHandler& /*on_failure*/) {
  Log log(log_role(mpi));
  comm::agree(mpi.world(), [&] {
    const std::string file = line.value("confusion", "");
    if (line.has("confusion") && file.empty()) {
      fail(ExitCode::kUsage, "--confusion= names no file; give --confusion=FILE.csv");
    }
    if (line.has("confusion") && mpi.world().rank() == 0) {
      train::require_confusion_writable(file);
    }
  });
  RunInputs inputs = open_trained(mpi, line.positions().front(), settings_of(line), Evaluates::kYes,
                                  which_checkpoint(line), log);
  const io::Dataset& data = *inputs.test_data;
  plan::Plan plan = make_plan(mpi, inputs, mpi.world().size());
  const std::vector<std::string> matched = match_data(mpi, inputs, plan);
  ExecutionEnvironment environment(mpi, inputs, plan, Use::kEvaluation);
  comm::Groups& groups = environment.groups();
  const plan::RankPlan rank = plan::rank_plan(plan, mpi.world().rank());
  std::optional<train::StageState> state;
  std::optional<train::ClassCounts> counts;
  {
    const train::FileTimeout timeout(mpi.world());
    comm::agree(mpi.world(), [&] {
      counts = counts_for(plan, line);
      train::require_same_model(plan, *inputs.checkpoint);
      state.emplace(environment.context(), plan, rank, groups);
      state->load_weights(*inputs.checkpoint);
    });
  }
  pipeline::Executor executor(state->chunks(), *groups.pipeline, *groups.engine);
  groups.world->enter(comm::Phase::kEvaluation);
  const train::EvaluationResult result =
      train::evaluate(environment.context(), plan, rank, groups, executor, data,
                      counts ? &*counts : nullptr, nullptr, nullptr)
          .value();
  comm::agree_on_first(mpi.world(), [&] {
    print_result(inputs, plan, result, counts, line);
    static_cast<void>(std::fflush(stdout));  // the result is the first line
  });
  for (const std::string& text : matched) {
    log.info("{}", text);
  }
  return ExitCode::kDone;
}

}  // namespace

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
                    "settings "
                    "name"}},
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
           }},
      {.name = "evaluate",
       .purpose = "loss and accuracy of the newest checkpoint",
       .synopses =
           {{"RUN|CONFIG.ini [--classes] [--confusion=FILE.csv] [--section.key=value ...]"}},
       .about =
           R"(Prints loss and accuracy of the newest good checkpoint on data.test, or on data.train if
data.test is empty. RUN is a run's directory. Runs on any number of ranks that the checkpoint's lanes, layers and shards
allow, with the same numbers.)",
       .options = {{"checkpoint", config::words_of<WhichCheckpoint>(),
                    "the newest one (default), or the best of checkpoint.best"},
                   {"classes", "",
                    "accuracy of each class, and the class it is most often confused with"},
                   {"confusion", "FILE.csv", "writes the confusion matrix"}},
       .lists = {{"Examples",
                  {{"strata evaluate RUN --data.test=FILE.h5", "on another data set"}}}},
       .settings = config::TakesSettings::kTaken,
       .positions = config::Positions::kSome,
       .needs = "a config file or a run's directory",
       .on_ranks = evaluate_model}};
}

}  // namespace strata::app
