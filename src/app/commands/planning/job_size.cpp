#include "commands/planning/job_size.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/plan/memory_fit.hpp"
#include "strata/plan/plan.hpp"

#include "commands/planning/plan_inputs.hpp"

namespace strata::app {
namespace {

constexpr std::int64_t kGib = std::int64_t{1} << 30;
/// Host memory of a rank beyond its arenas: the program, its libraries, page tables, and CUDA.
constexpr std::int64_t kCpuRankBytes = kGib;
constexpr std::int64_t kGpuRankBytes = 4 * kGib;

/// Bytes of a size such as 64G, or, as Slurm reads it, of a number of MiB.
std::int64_t size_of(const config::CommandLine& line, std::string_view name) {
  const std::string text = line.value(name, "0");
  const std::size_t unit = std::string_view("KMGT").find(text.empty() ? ' ' : text.back());
  std::int64_t number = 0;
  if (!parse_int64(text.substr(0, text.size() - (unit == std::string::npos ? 0 : 1)), number) ||
      number < 0 || number > (std::int64_t{1} << 20) * 1024) {
    config::refuse_value(name, text, "a size, as in 64G");
  }
  const std::array<std::int64_t, 4> units{1 << 10, 1 << 20, 1 << 30, std::int64_t{1} << 40};
  return number * (unit == std::string::npos ? units[1] : units[unit]);
}

/// The range of --nodes.
void read_nodes(const std::string& text, JobScript& script) {
  const std::size_t dash = text.find('-');
  if (!parse_int64(text.substr(0, dash), script.least_nodes) ||
      !parse_int64(dash == std::string::npos ? text : text.substr(dash + 1), script.nodes) ||
      script.least_nodes < 1 || script.nodes < script.least_nodes || script.nodes > 65536) {
    config::refuse_value("nodes", text, "a number of nodes from 1, or MIN-MAX");
  }
  if (script.least_nodes < script.nodes && script.scheduler != Scheduler::kSlurm) {
    fail(ExitCode::kUsage,
         "--nodes={} is a range, which only --scheduler=slurm has; give one number", text);
  }
}

void read_spares(const config::CommandLine& line, JobScript& script) {
  if (!line.has("spares")) {
    return;
  }
  script.spares = line.count("spares", 0, 0, 65536);
  if (script.scheduler != Scheduler::kSlurm &&
      (script.scheduler != Scheduler::kShell || !line.has("hostfile"))) {
    fail(ExitCode::kUsage,
         "--spares needs --scheduler=slurm, or --hostfile without --scheduler, because {} ends a "
         "job that loses a node; leave --spares out",
         script.scheduler == Scheduler::kShell ? "mpirun on one host" : name_of(script.scheduler));
  }
}

/// Ranks of a node that the config asks for.
std::int64_t default_ranks_per_node(const config::RunConfig& config, std::int64_t nodes) {
  return (ranks_asked_for(config) + nodes - 1) / nodes;
}

void check_grid(const JobScript& script, const config::RunConfig& config, std::int64_t lanes) {
  const std::int64_t ranks = script.nodes * script.ranks_per_node;
  if (plan::can_launch(config, ranks, lanes)) {
    return;
  }
  std::vector<std::string> fitting;
  for (const std::int64_t other :
       plan::nearest_launchable(config, ranks, lanes, script.ranks_per_node,
                                (4 * script.nodes + 8) * script.ranks_per_node)) {
    fitting.push_back(fmt::format("--nodes={}", other / script.ranks_per_node));
  }
  const std::string data =
      config.parallel.data == 0 ? "" : fmt::format("{} data x ", config.parallel.data);
  fail(ExitCode::kUsage,
       "{} node{} x {} rank{} are {}, on which the grid of {}{} pipeline x {} tensor{} does not "
       "fit; "
       "{} fit{}",
       script.nodes, script.nodes == 1 ? "" : "s", script.ranks_per_node,
       script.ranks_per_node == 1 ? "" : "s", ranks, data, config.parallel.pipeline,
       config.parallel.tensor,
       lanes == 0 || config.parallel.data != 0
           ? ""
           : fmt::format(" and replicas that divide {} lanes", lanes),
       plan::launchable_ranks(config, ranks, lanes),
       fitting.empty() ? ", with another --ranks-per-node"
                       : fmt::format(" ({})", fmt::join(fitting, " or ")));
}

/// The ranks that the script of a range of nodes launches on `nodes` of them.
std::int64_t launched_ranks(const JobScript& script, std::int64_t nodes) {
  std::int64_t data = script.lanes;
  while (data * script.model_ranks > nodes * script.ranks_per_node || script.lanes % data != 0) {
    --data;
  }
  return data * script.model_ranks;
}

/// planned_data(), or nothing where the data that it needs do not exist yet.
std::optional<io::DatasetInfo> data_of(const config::RunConfig& config) {
  try {
    return planned_data(config);
  } catch (const Error&) {
    if (has_data(config)) {
      throw;
    }
    return std::nullopt;
  }
}

device::DeviceKind device_of(const config::RunConfig& config) {
  return config.run.device.value_or(device::DeviceKind::kCpu);
}

/// The lanes of a new run on at most `replicas`.
std::int64_t lanes_for(const config::RunConfig& config, std::int64_t replicas) {
  const std::optional<io::DatasetInfo> data = data_of(config);
  return data && config.parallel.sync == config::Sync::kStep
             ? plan::default_lanes(config, config.batch.global, replicas, *data, device_of(config))
             : replicas;
}

/// Sets the memory of a node, and prints the plan's.
void plan_memory(plan::Plan plan, const plan::VirtualGrid& stored, const config::CommandLine& line,
                 JobScript& script) {
  plan::set_node_ranks(plan, script.ranks_per_node);
  std::int64_t most = 0;
  for (const plan::RankPlan& rank : plan::largest_rank_plans(plan)) {
    most = std::max(most, plan::host_bytes(plan, rank));
  }
  const bool gpu = plan.device == device::DeviceKind::kCuda;
  const std::int64_t program = gpu ? kGpuRankBytes : kCpuRankBytes;
  const std::int64_t needed = script.ranks_per_node * (most + program);
  const std::int64_t given = size_of(line, "mem");
  print_error(fmt::format(
      "{}\nmemory per node: {} rank{} x ({} planned + {} for the program) = {}\n",
      plan::memory_text(plan), script.ranks_per_node, script.ranks_per_node == 1 ? "" : "s",
      bytes_text(most), bytes_text(program), bytes_text(needed)));
  if (given != 0 && given < needed) {
    fail(ExitCode::kUsage,
         "{} ranks need {} of a node's memory, --mem is {}; give --mem={}G, or fewer "
         "--ranks-per-node",
         script.ranks_per_node, bytes_text(needed), bytes_text(given), (needed + kGib - 1) / kGib);
  }
  script.memory_gib = ((given != 0 ? given : needed) + kGib - 1) / kGib;
  const std::int64_t gpu_bytes = size_of(line, "gpu-memory");
  if (!gpu || gpu_bytes == 0) {
    return;
  }
  plan = plan::with_fitting_defaults(std::move(plan), stored, [&](const plan::Plan& candidate) {
    return !plan::too_large_rank(candidate, gpu_bytes);
  });
  if (const auto rank = plan::too_large_rank(plan, gpu_bytes)) {
    fail(ExitCode::kUsage, "{}", plan::missing_memory(plan, *rank, gpu_bytes, stored).value());
  }
}

/// Fixes the lanes of a job that goes on with fewer nodes too; each start computes the replicas.
void fix_lanes(std::int64_t lanes, config::RunConfig& config, JobScript& script) {
  if (script.least_nodes * script.ranks_per_node < script.model_ranks) {
    fail(ExitCode::kUsage,
         "a replica takes {} ranks, but {} node{} of {} rank{} have fewer; give --nodes={}-{}, or "
         "more "
         "--ranks-per-node",
         script.model_ranks, script.least_nodes, script.least_nodes == 1 ? "" : "s",
         script.ranks_per_node, script.ranks_per_node == 1 ? "" : "s",
         (script.model_ranks + script.ranks_per_node - 1) / script.ranks_per_node, script.nodes);
  }
  const std::int64_t room = script.nodes * script.ranks_per_node / script.model_ranks;
  script.lanes = lanes != 0 ? lanes : lanes_for(config, std::max(config.parallel.data, room));
  config.parallel.data = 0;
  config.numerics.lanes = script.lanes;
  script.settings.emplace_back("--parallel.data=0");
  script.settings.push_back(fmt::format("--numerics.lanes={}", script.lanes));
}

}  // namespace

std::int64_t ranks_asked_for(const config::RunConfig& config) {
  const auto axis = [](std::int64_t ranks) { return std::max<std::int64_t>(1, ranks); };
  return axis(config.parallel.data) * axis(config.parallel.pipeline) * axis(config.parallel.tensor);
}

void set_job_size(const config::CommandLine& line, config::GivenConfig& given, JobScript& script) {
  const plan::VirtualGrid stored = continued_grid(given, line.settings());
  config::RunConfig& config = given.config;
  config = plan::with_stored_stages(std::move(config), stored);
  read_nodes(line.value("nodes", "1"), script);
  read_spares(line, script);
  script.ranks_per_node =
      line.count("ranks-per-node", default_ranks_per_node(config, script.nodes), 1, 4096);
  script.model_ranks = config.parallel.pipeline * config.parallel.tensor;
  const std::int64_t lanes = config.numerics.lanes != 0 ? config.numerics.lanes : stored.lanes;
  std::int64_t ranks = script.nodes * script.ranks_per_node;
  const bool range = script.least_nodes < script.nodes;
  if (!range) {
    check_grid(script, config, lanes);
  }
  if (range || script.spares) {
    fix_lanes(lanes, config, script);
    ranks = launched_ranks(script, script.nodes);
  }
  const bool gpu = config.run.device == device::DeviceKind::kCuda;
  script.gpus_per_node = gpu ? script.ranks_per_node : 0;
  const std::int64_t cores = config.run.threads > 0 ? config.run.threads : gpu ? 8 : 4;
  script.cpus_per_task = line.count("cpus-per-task", cores, 1, 4096);
  script.grid =
      grid::Grid{ranks / script.model_ranks, config.parallel.pipeline, config.parallel.tensor}
          .text();
  if (!config.run.device) {
    print_error(
        "run.device is auto, so the job asks for no GPUs; with --run.device=cuda it does\n");
  }
  if (const std::optional<io::DatasetInfo> data = data_of(config)) {
    plan_memory(plan::prepare(with_length(config, *data), ranks, *data, stored, device_of(config)),
                stored, line, script);
  } else {
    print_error("data.train does not exist yet, so the memory is not planned\n");
    script.memory_gib = (size_of(line, "mem") + kGib - 1) / kGib;
  }
}

}  // namespace strata::app
