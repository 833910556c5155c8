#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/comm/agree.hpp"
#include "strata/config/config_file.hpp"
#include "strata/config/options.hpp"
#include "strata/core/utf8.hpp"
#include "strata/forecast/completion.hpp"
#include "strata/forecast/forecast.hpp"
#include "strata/forecast/grid_search.hpp"
#include "strata/io/text_file.hpp"
#include "strata/plan/memory_fit.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/planning/calibrate.hpp"
#include "commands/planning/plan_inputs.hpp"
#include "commands/planning/plan_page.hpp"
#include "commands/planning/plan_view.hpp"
#include "environment/execution_environment.hpp"

namespace strata::app {
namespace {

forecast::Machine machine_of(const config::CommandLine& line, const config::RunConfig& config) {
  const std::string name = line.value("machine", config.run.machine);
  if (name.empty()) {
    fail(ExitCode::kUsage,
         "strata plan needs a machine: --machine=FILE, where \"strata plan --calibrate=FILE "
         "--ranks=N\" writes the file of this one, or a shipped one: {}",
         fmt::format("{}", fmt::join(forecast::shipped_machines(), ", ")));
  }
  return forecast::read_machine(name);
}

/// What the ranks of the config's device compute on.
device::DeviceKind device_of(const forecast::Machine& machine, const config::RunConfig& config) {
  const std::optional<device::DeviceKind> asked = config.run.device;
  if (asked && asked != machine.device) {
    fail(ExitCode::kUsage,
         "run.device is {}, but the machine {} computes on {}; give another --machine, or leave "
         "run.device out",
         name_of(*asked), machine.name,
         machine.device == device::DeviceKind::kCuda ? "GPUs" : "cores");
  }
  return machine.device;
}

/// The names of settings on the command line: a search leaves them as they are.
std::set<std::string> fixed_settings(const std::vector<std::string>& settings) {
  std::set<std::string> fixed;
  for (const std::string& setting : settings) {
    fixed.insert(setting.substr(2, setting.find('=') - 2));
  }
  return fixed;
}

/// Writes the user's file with the settings of the choice, which was searched for `given`, and
/// those of the command line, and says which of its settings changed.
std::string write_choice(const std::string& output, const std::string& path,
                         const std::vector<std::string>& settings, const config::RunConfig& given,
                         const forecast::GridChoice& choice) {
  constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;
  config::RunConfig chosen = choice.config;
  chosen.train.steps = given.train.steps;
  chosen.train.epochs = given.train.epochs;
  chosen.parallel.bucket_mib = choice.bucket_mib;
  config::ChangedSettings changes = config::changed_settings(given, chosen);
  for (const std::string& key : fixed_settings(settings)) {
    const auto option = std::ranges::find(config::option_table(), key, &config::Option::key);
    if (option->get(chosen) == option->get(given)) {
      changes.emplace_back(key, option->get(given));
    }
  }
  write_file(output,
             config::with_settings(io::read_input(path, kMostBytes, ExitCode::kUsage), changes));
  std::string text;
  for (const auto& [key, value] : changes) {
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", key, value);
  }
  return fmt::format("{}: {}{}\n", printable_lines(output), path,
                     text.empty() ? " as it is" : " with " + text);
}

/// Ranks of the launch; 0: those of the config's grid.
struct Launch {
  std::int64_t ranks = 0;
  std::int64_t node_ranks = 1;
};

Launch launch_of(const config::CommandLine& line, const forecast::Machine& machine) {
  const bool gpu = machine.device == device::DeviceKind::kCuda;
  Launch launch{.node_ranks = line.count("ranks-per-node", machine.node_devices, 1,
                                         gpu ? machine.node_devices : config::kMostRanks)};
  if (line.has("nodes") && line.has("ranks")) {
    fail(ExitCode::kUsage, "--nodes and --ranks both say how many ranks to plan for; give one");
  }
  if (line.has("nodes")) {
    launch.ranks = line.count("nodes", 1, 1, config::kMostRanks) * launch.node_ranks;
  } else if (line.has("ranks")) {
    launch.ranks = line.count("ranks", 1, 1, config::kMostRanks);
    launch.node_ranks = std::min(launch.node_ranks, launch.ranks);
  }
  return launch;
}

ExitCode plan_run(const config::CommandLine& line) {
  if (line.positions().size() != 1) {
    fail(ExitCode::kUsage,
         "strata plan needs one config file: strata plan CONFIG.ini --nodes=N --machine=M ...");
  }
  if (line.has("write") && !line.has("search")) {
    fail(ExitCode::kUsage, "--write writes the grid that --search finds; give both");
  }
  if (line.has("write") && std::ranges::any_of(line.settings(), [](const std::string& setting) {
        return setting.starts_with("--model.layer=");
      })) {
    fail(ExitCode::kUsage,
         "--write keeps the layers of the config file; write those of the command line there");
  }
  for (const char* name : {"threads", "cores", "hostfile"}) {
    if (line.has(name)) {
      fail(ExitCode::kUsage, "--{} is of --calibrate; leave it out", name);
    }
  }
  const auto number = [&](const char* name, double otherwise) {
    constexpr double kMost = 1e15;
    return line.number(name, otherwise, 0.0, kMost);
  };
  const double failures_per_node_day = number("failures", 0.0);
  const double restart_seconds = number("restart", 300.0);
  const double kwh_price = number("kwh-price", 0.0);
  const double node_hour_price = number("node-hour-price", 0.0);
  config::GivenConfig given = config::read_config(line.positions().front(), line.settings());
  const forecast::Machine machine = machine_of(line, given.config);
  const device::DeviceKind device = device_of(machine, given.config);
  const plan::VirtualGrid stored = continued_grid(given, line.settings());
  const io::DatasetInfo data = planned_data(given.config);
  const Launch launch = launch_of(line, machine);
  config::RunConfig config = with_length(given.config, data);
  forecast::Forecaster forecaster(machine);
  std::optional<forecast::SearchResult> found;
  if (line.has("search")) {
    const grid::Grid own{std::max<std::int64_t>(1, config.parallel.data),
                         std::max<std::int64_t>(1, config.parallel.pipeline),
                         std::max<std::int64_t>(1, config.parallel.tensor)};
    found = forecast::search_grids(forecaster, config, data,
                                   {.ranks = launch.ranks > 0 ? launch.ranks : own.ranks(),
                                    .node_ranks = launch.node_ranks,
                                    .device = device,
                                    .stored = stored,
                                    .fixed = fixed_settings(line.settings())});
    config = found->choices.front().config;
  }
  plan::Plan plan = plan::prepare(config, launch.ranks, data, stored, device);
  plan::set_node_ranks(plan, launch.node_ranks);
  if (device == device::DeviceKind::kCuda) {
    const auto free = static_cast<std::int64_t>(forecaster.free_bytes(plan, launch.node_ranks));
    plan = plan::with_fitting_defaults(std::move(plan), stored, [&](const plan::Plan& candidate) {
      return !plan::too_large_rank(candidate, free);
    });
  }
  const forecast::Forecast forecast = forecaster.forecast(plan, launch.node_ranks);
  forecast::RunConditions conditions =
      forecast::conditions_of(plan, forecast, machine, launch.node_ranks);
  conditions.failures_per_node_day = failures_per_node_day;
  conditions.restart_seconds = restart_seconds;
  conditions.kwh_price = kwh_price;
  conditions.node_hour_price = node_hour_price;
  if (has_unknown_length(given.config, data)) {
    conditions.steps = 0.0;
  }
  const PlanView view{plan, machine, forecast, conditions};
  if (line.has("html")) {
    write_file(line.value("html", ""), plan_page(view, line.positions().front(), launch.node_ranks,
                                                 found ? &*found : nullptr));
  }
  const std::string verdict = verdict_line(view);
  fmt::print("{}\n\n{}{}\n{}\n", verdict, found ? search_text(*found) + "\n" : "",
             forecast_text(view), verdict);
  if (line.has("write")) {
    fmt::print("{}", write_choice(line.value("write", ""), line.positions().front(),
                                  line.settings(), given.config, found->choices.front()));
  }
  return ExitCode::kDone;
}

/// Measures this machine, with the operations of the models of the configs too.
ExitCode calibrate_for(const config::CommandLine& line, comm::MpiSession& mpi,
                       const config::FailureHandler& /*on_failure*/) {
  CalibrateOptions options;
  std::vector<plan::Plan> plans;
  const device::DeviceKind device = resolve_device(mpi, std::nullopt);
  comm::agree(mpi.world(), [&] {
    options.file = line.value("calibrate", "");
    options.cores = line.has("cores") ? line.count("cores", 1, 1, 65536) : 0;
    options.threads = line.has("threads") ? line.count("threads", 1, 1, 4096) : 0;
    for (const std::string& path : line.positions()) {
      config::RunConfig config = config::read_config(path, line.settings()).config;
      config.parallel.data = config.parallel.pipeline = config.parallel.tensor = 1;
      config.parallel.split = "auto";
      const io::DatasetInfo data = planned_data(config);
      plans.push_back(plan::prepare(with_length(config, data), 1, data, {}, device));
    }
  });
  return calibrate(mpi, options, plans);
}

}  // namespace

Commands plan_commands() {
  return {
      {.name = "plan",
       .purpose = "the time of a step, the memory, the best grid",
       .synopses = {{"CONFIG.ini --nodes=N --machine=M [--search] ... [--section.key=value ...]",
                     "predicts a run"},
                    {"[CONFIG.ini ...] --calibrate=FILE", "measures this machine"}},
       .about = fmt::format(
           R"(Predicts a run on a machine: the time of a step and where it goes, the memory of each rank, and
when training will be done. Runs on one core, allocates no tensors and starts no ranks. A search keeps the settings of
the command line.

Shipped machines: {}.)",
           fmt::join(forecast::shipped_machines(), ", ")),
       .options =
           {{"machine", "M",
             "a machine's file, or the name of a shipped one (default: run.machine)"},
            {"nodes", "N",
             "nodes; all their devices are used, or --ranks=N of them (default: the config's "
             "grid)"},
            {"ranks-per-node", "R", "ranks on a node (default: the machine's devices)"},
            {"search", "", "tries all grids that fit, and shows the fastest"},
            {"write", "FILE",
             "writes CONFIG.ini with the fastest grid, all else as it is; needs --search"},
            {"html", "FILE", "writes a page: ranks, memory, a step as a picture, the search"},
            {"failures", "F", "failures per node and day, for the end of training (default 0)"},
            {"restart", "SECONDS", "time from a failure to the first repeated step (default 300)"},
            {"kwh-price", "P", "price of a kWh, in any currency"},
            {"node-hour-price", "P", "price of a node hour"},
            {"calibrate", "FILE", "measures this machine with --ranks=N, and writes its file"},
            {"threads", "T", "with --calibrate: threads of a rank (default: as in training)"},
            {"cores", "N",
             "with --calibrate: cores of a node that ranks compute on (default: those found)"}},
       .settings = config::TakesSettings::kTaken,
       .alone = plan_run,
       .on_ranks = calibrate_for,
       .on_ranks_with = "calibrate"}};
}

}  // namespace strata::app
