#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>

#include "strata/app/config_file.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/io/dataset.hpp"
#include "strata/plan/memory_fit.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/checkpointing.hpp"

#include "commands/commands.hpp"
#include "commands/job_script.hpp"
#include "config/site_file.hpp"

namespace strata::app {
namespace {

constexpr std::int64_t kGib = std::int64_t{1} << 30;
/// Host memory of a rank beyond its arenas: the program, its libraries, page tables, and CUDA.
constexpr std::int64_t kCpuRankBytes = kGib;
constexpr std::int64_t kGpuRankBytes = 4 * kGib;

struct JobOption {
  const char* name;
  const char* value;
  const char* help;
};

constexpr std::array<JobOption, 22> kOptions{{
    {"nodes", "N", "nodes; MIN-MAX: with fewer, fewer replicas (Slurm; default 1)"},
    {"ranks-per-node", "R", "ranks on a node (default: what parallel.* asks for)"},
    {"time", "T", "limit: MINUTES, HH:MM:SS or DAYS-HH[:MM[:SS]]"},
    {"cpus-per-task", "C", "cores of a rank (default: run.threads, else 8 with a GPU, else 4)"},
    {"mem", "M", "memory of a node, as in 64G (default: from the plan)"},
    {"gpu-memory", "M", "memory of a GPU; a plan that does not fit is refused"},
    {"partition", "P", "partition or queue"},
    {"account", "A", "account or bank"},
    {"qos", "Q", "quality of service"},
    {"constraint", "F", "features that nodes must have"},
    {"modules", "LIST", "environment modules to load"},
    {"container", "IMAGE", "image in which apptainer runs the ranks"},
    {"launcher", "L", "srun or mpirun (default srun; without Slurm mpirun)"},
    {"fence", "F", "SLURM_PMIX_FENCE, which Open MPI's start under srun uses (default ring)"},
    {"hostfile", "FILE",
     "a plain shell script for mpirun on these hosts, for clusters without a scheduler"},
    {"scheduler", "S", "slurm, pbs, flux or shell (default slurm)"},
    {"signal", "SECONDS",
     "lead of the stop signal on the limit (default 120, at most a quarter of the limit)"},
    {"starts", "K",
     "starts in a row without a new checkpoint, before the job gives up (default 3)"},
    {"chain", "N",
     "N jobs, each of which starts where the one before it left off, instead of a requeue"},
    {"job-name", "NAME", "name of the job (default: that of run.dir)"},
    {"program", "FILE", "the executable (default: this one)"},
    {"output", "FILE", "writes the script there instead of to stdout"},
}};

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const JobOption& option : kOptions) {
    names.emplace_back(option.name);
  }
  return names;
}

/// The arguments of a job: options of the command, and settings of the config.
struct JobArguments {
  std::vector<std::string> options;
  std::vector<std::string> settings;
};

/// A name with a dot is a setting's.
JobArguments separated(Arguments arguments) {
  JobArguments result;
  for (const std::string& argument : arguments) {
    const std::size_t dot = argument.substr(0, argument.find('=')).find('.');
    const bool setting = argument.starts_with("--") && dot != std::string::npos;
    (setting ? result.settings : result.options).push_back(argument);
  }
  return result;
}

/// The site's options, then the command line's, which override them.
CommandLine job_line(const std::vector<std::string>& options) {
  std::vector<std::string> all;
  for (const auto& [name, value] : read_site_file(option_names())) {
    all.push_back(fmt::format("--{}={}", name, value));
  }
  all.insert(all.end(), options.begin(), options.end());
  CommandLine line(all, option_names(), {"submit"}, CommandLine::Values::kOne);
  if (line.positions().size() != 1) {
    fail(ExitCode::kUsage,
         "strata job needs one config file: strata job CONFIG.ini --nodes=N --time=T ...");
  }
  return line;
}

[[noreturn]] void refuse_value(std::string_view name, const std::string& value,
                               std::string_view expected) {
  fail(ExitCode::kUsage, "--{} is \"{}\"; give {}", name, value, expected);
}

template <typename Enum>
Enum choice_of(const CommandLine& line, std::string_view name, const std::string& otherwise) {
  const std::string value = line.value(name, otherwise);
  const std::optional<Enum> choice = enum_from_name<Enum>(value);
  if (!choice) {
    refuse_value(name, value, "one of " + joined_names<Enum>());
  }
  return *choice;
}

/// Seconds of a time limit in Slurm's notation.
std::int64_t limit_of(const std::string& text) {
  const auto refuse = [&] {
    refuse_value("time", text,
                 "MINUTES, HH:MM:SS or DAYS-HH[:MM[:SS]], as in 90, 24:00:00 or 2-12");
  };
  const std::size_t dash = text.find('-');
  std::vector<std::int64_t> parts;
  for (const std::string& word :
       split_words(text.substr(dash == std::string::npos ? 0 : dash + 1), ":")) {
    if (!parse_int64(word, parts.emplace_back()) || parts.back() < 0 || parts.back() > 1'000'000) {
      refuse();
    }
  }
  std::int64_t days = 0;
  if (parts.empty() || parts.size() > 3 ||
      (dash != std::string::npos &&
       (!parse_int64(text.substr(0, dash), days) || days < 0 || days > 1000))) {
    refuse();
  }
  // Without days, one part is minutes and two are minutes and seconds.
  const bool hours_first = dash != std::string::npos || parts.size() == 3;
  const auto part = [&](std::size_t i) { return i < parts.size() ? parts[i] : 0; };
  const std::int64_t seconds =
      hours_first ? days * 86400 + part(0) * 3600 + part(1) * 60 + part(2) : part(0) * 60 + part(1);
  if (seconds < 60) {
    refuse();
  }
  return seconds;
}

/// Bytes of a size such as 64G, or, as Slurm reads it, of a number of MiB.
std::int64_t size_of(const CommandLine& line, std::string_view name) {
  const std::string text = line.value(name, "0");
  const std::size_t unit = std::string_view("KMGT").find(text.empty() ? ' ' : text.back());
  std::int64_t number = 0;
  if (!parse_int64(text.substr(0, text.size() - (unit == std::string::npos ? 0 : 1)), number) ||
      number < 0 || number > (std::int64_t{1} << 20) * 1024) {
    refuse_value(name, text, "a size, as in 64G");
  }
  const std::array<std::int64_t, 4> units{1 << 10, 1 << 20, 1 << 30, std::int64_t{1} << 40};
  return number * (unit == std::string::npos ? units[1] : units[unit]);
}

/// The virtual grid of the newest checkpoint in run.dir that opens.
plan::VirtualGrid stored_grid(const plan::RunConfig& config) {
  for (const io::CheckpointEntry& entry : io::list_checkpoints(train::checkpoint_root(config))) {
    try {
      return train::virtual_grid_of(io::Checkpoint::open(entry.directory));
    } catch (const Error&) {
      continue;  // a run skips it too
    }
  }
  return {};
}

/// The range of --nodes.
void read_nodes(const std::string& text, JobScript& script) {
  const std::size_t dash = text.find('-');
  if (!parse_int64(text.substr(0, dash), script.least_nodes) ||
      !parse_int64(dash == std::string::npos ? text : text.substr(dash + 1), script.nodes) ||
      script.least_nodes < 1 || script.nodes < script.least_nodes || script.nodes > 65536) {
    refuse_value("nodes", text, "a number of nodes from 1, or MIN-MAX");
  }
  if (script.least_nodes < script.nodes && script.scheduler != Scheduler::kSlurm) {
    fail(ExitCode::kUsage,
         "--nodes={} is a range, which only --scheduler=slurm has; give one number", text);
  }
}

/// Ranks of a node that the config asks for.
std::int64_t default_ranks_per_node(const plan::RunConfig& config, std::int64_t nodes) {
  const std::int64_t ranks = config.parallel.pipeline * config.parallel.tensor *
                             std::max<std::int64_t>(1, config.parallel.data);
  return (ranks + nodes - 1) / nodes;
}

void check_grid(const JobScript& script, const plan::RunConfig& config, std::int64_t lanes) {
  const std::int64_t ranks = script.nodes * script.ranks_per_node;
  if (plan::can_launch(config, ranks, lanes)) {
    return;
  }
  std::vector<std::string> fitting;
  for (std::int64_t nodes = script.nodes - 1; nodes > 0 && fitting.empty(); --nodes) {
    if (plan::can_launch(config, nodes * script.ranks_per_node, lanes)) {
      fitting.push_back(fmt::format("--nodes={}", nodes));
    }
  }
  for (std::int64_t nodes = script.nodes + 1; nodes <= 4 * script.nodes + 8; ++nodes) {
    if (plan::can_launch(config, nodes * script.ranks_per_node, lanes)) {
      fitting.push_back(fmt::format("--nodes={}", nodes));
      break;
    }
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

/// The plan of a job, or nothing where the data that it needs do not exist yet.
std::optional<plan::Plan> plan_of(const plan::RunConfig& config, const JobScript& script,
                                  const plan::VirtualGrid& stored) {
  io::DatasetInfo data;
  if (std::error_code error; std::filesystem::exists(config.data.train, error)) {
    data = io::Dataset::open(config.data.train).info();
    if (data.task == io::Task::kNextToken) {
      data.input_shape = data.target_shape = {plan::context_of(config)};
    }
  } else {
    try {
      data = plan::assumed_data(config);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  plan::RunConfig planned = config;
  if (data.samples == 0 && planned.train.steps == 0) {
    planned.train.steps = 1;  // epochs need data; the length does not change the memory
    planned.train.epochs = 0.0;
  }
  return plan::prepare(planned, script.nodes * script.ranks_per_node, data, stored,
                       config.run.device == plan::DeviceChoice::kCuda ? device::DeviceKind::kCuda
                                                                      : device::DeviceKind::kCpu);
}

/// Sets the memory of a node, and prints the plan's.
void plan_memory(const plan::Plan& plan, const plan::VirtualGrid& stored, const CommandLine& line,
                 JobScript& script) {
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
  for (std::int64_t rank = 0; gpu && gpu_bytes > 0 && rank < plan.grid.ranks();
       rank += plan.grid.data * plan.grid.tensor) {
    plan::require_fits_memory(plan, rank, gpu_bytes, stored);
  }
}

/// The nodes, the ranks and the grid. Prints the memory.
void set_size(const CommandLine& line, plan::RunConfig& config, JobScript& script) {
  read_nodes(line.value("nodes", "1"), script);
  script.ranks_per_node =
      line.count("ranks-per-node", default_ranks_per_node(config, script.nodes), 1, 4096);
  const plan::VirtualGrid stored = stored_grid(config);
  const std::int64_t ranks = script.nodes * script.ranks_per_node;
  script.model_ranks = config.parallel.pipeline * config.parallel.tensor;
  const std::int64_t lanes = config.numerics.lanes != 0 ? config.numerics.lanes : stored.lanes;
  if (script.least_nodes < script.nodes) {
    // The job computes the replicas of each start; the lanes stay.
    if (script.least_nodes * script.ranks_per_node < script.model_ranks) {
      fail(ExitCode::kUsage,
           "a replica takes {} ranks, and {} nodes of {} have fewer; give --nodes={}-{}, or more "
           "--ranks-per-node",
           script.model_ranks, script.least_nodes, script.ranks_per_node,
           (script.model_ranks + script.ranks_per_node - 1) / script.ranks_per_node, script.nodes);
    }
    script.lanes = lanes != 0
                       ? lanes
                       : std::max<std::int64_t>(config.parallel.data, ranks / script.model_ranks);
    config.parallel.data = 0;
    config.numerics.lanes = script.lanes;
    script.settings.emplace_back("--parallel.data=0");
    script.settings.push_back(fmt::format("--numerics.lanes={}", script.lanes));
  }
  check_grid(script, config, lanes);
  const bool gpu = config.run.device == plan::DeviceChoice::kCuda;
  script.gpus_per_node = gpu ? script.ranks_per_node : 0;
  script.cpus_per_task = line.count("cpus-per-task",
                                    config.run.threads > 0 ? config.run.threads
                                    : gpu                  ? 8
                                                           : 4,
                                    1, 4096);
  script.grid =
      grid::Grid{ranks / script.model_ranks, config.parallel.pipeline, config.parallel.tensor}
          .text();
  if (config.run.device == plan::DeviceChoice::kAuto) {
    print_error(
        "run.device is auto, so the job asks for no GPUs; with --run.device=cuda it does\n");
  }
  if (const std::optional<plan::Plan> plan = plan_of(config, script, stored)) {
    plan_memory(*plan, stored, line, script);
  } else {
    print_error("data.train does not exist yet, so the memory is not planned\n");
    script.memory_gib = (size_of(line, "mem") + kGib - 1) / kGib;
  }
}

void set_times(const CommandLine& line, JobScript& script) {
  const bool shell = script.scheduler == Scheduler::kShell;
  if (!line.has("time") && !shell) {
    fail(ExitCode::kUsage, "strata job needs a time limit: --time=HH:MM:SS");
  }
  script.limit_seconds = shell ? 0 : limit_of(line.value("time", ""));
  const std::int64_t most = shell ? 0 : script.limit_seconds - 1;
  script.signal_seconds =
      line.count("signal", std::min<std::int64_t>(120, script.limit_seconds / 4), shell ? 0 : 1,
                 shell ? 3600 : most);
  script.chain = line.count("chain", 1, 1, 1000);
  script.starts = line.count("starts", 3, 1, 1000);
}

/// This executable, relative to the working directory where it lies below it.
std::string own_path() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path relative = self.lexically_relative(std::filesystem::current_path());
  return error                                           ? "strata"
         : relative.empty() || *relative.begin() == ".." ? self.string()
                                                         : relative.string();
}

void set_names(const CommandLine& line, const plan::RunConfig& config, JobScript& script) {
  const auto text = [&](const char* name) { return line.value(name, ""); };
  script.partition = text("partition");
  script.account = text("account");
  script.qos = text("qos");
  script.constraint = text("constraint");
  script.modules = text("modules");
  script.container = text("container");
  script.fence = line.value("fence", "ring");
  script.hostfile = text("hostfile");
  script.program = line.value("program", own_path());
  script.config = line.positions().front();
  script.run_directory = config.run.dir;
  std::filesystem::path run(config.run.dir);
  script.name =
      line.value("job-name", (run.has_filename() ? run : run.parent_path()).filename().string());
  const bool shell = script.scheduler == Scheduler::kShell;
  script.file = line.value(
      "output", script.name + (shell ? ".sh" : fmt::format(".{}", name_of(script.scheduler))));
}

JobScript job_of(const CommandLine& line, const std::vector<std::string>& settings) {
  GivenConfig given = read_config(line.positions().front(), settings);
  JobScript script;
  script.scheduler =
      choice_of<Scheduler>(line, "scheduler", line.has("hostfile") ? "shell" : "slurm");
  const bool slurm = script.scheduler == Scheduler::kSlurm;
  script.launcher = choice_of<Launcher>(line, "launcher", slurm ? "srun" : "mpirun");
  if (!slurm && script.launcher == Launcher::kSrun) {
    fail(ExitCode::kUsage, "--launcher=srun needs Slurm; give --launcher=mpirun, or leave it out");
  }
  script.settings = settings;
  set_times(line, script);
  set_size(line, given.config, script);
  set_names(line, given.config, script);
  return script;
}

/// Runs a command and returns its output. Throws: Error(kUsage) with the output where it fails.
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>&1").c_str(), "r"),
                                                   [](FILE*) { return 0; });
  std::string output;
  std::array<char, 4096> piece{};
  while (pipe && std::fgets(piece.data(), static_cast<int>(piece.size()), pipe.get()) != nullptr) {
    output += piece.data();
  }
  const int status = pipe ? pclose(pipe.get()) : -1;
  output = trimmed(output);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fail(ExitCode::kUsage, "\"{}\" refused the script: {}", command, output);
  }
  return output;
}

void write_script(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) {
    fail(ExitCode::kData, "cannot write the script {}; choose another --output", path);
  }
}

/// Hands the script to the scheduler, or a chain of jobs.
void submit(const JobScript& script) {
  if (script.scheduler == Scheduler::kShell) {
    fail(ExitCode::kUsage, "--submit needs a scheduler; run the script with bash {}", script.file);
  }
  std::string before;
  for (std::int64_t job = 0; job < script.chain; ++job) {
    const std::string after = before.empty() ? "" : " " + submit_after(script.scheduler, before);
    before = output_of(
        fmt::format("{}{} {}", submit_command(script.scheduler), after, shell_quoted(script.file)));
    fmt::print("{}\n", before);
  }
}

}  // namespace

std::string job_help() {
  std::string text =
      R"(strata job CONFIG.ini --nodes=N --time=T [options] [--section.key=value ...] [--submit]

Writes a job script that trains, stops ahead of the time limit with a checkpoint and goes on in a new start. Checks that
the grid fits the nodes, and prints the memory of a rank.

)";
  for (const JobOption& option : kOptions) {
    text += fmt::format("  {:<22} {}\n", fmt::format("--{}={}", option.name, option.value),
                        option.help);
  }
  return text +
         R"(  --submit               hands the script to the scheduler and prints the job's id

Defaults of a site are [job] lines "name = value" with these names in $STRATA_SITE, ~/.config/strata/site.ini or
/etc/strata/site.ini, whichever is first.
)";
}

ExitCode job_command(Arguments arguments) {
  const JobArguments given = separated(arguments);
  const CommandLine line = job_line(given.options);
  JobScript script = job_of(line, given.settings);
  script.command = "strata job";
  for (const std::string& argument : arguments) {
    script.command += argument == "--submit" ? "" : " " + shell_quoted(argument);
  }
  const std::string text = script_text(script);
  if (!line.has("output") && !line.has("submit")) {
    fmt::print("{}", text);
    return ExitCode::kDone;
  }
  write_script(script.file, text);
  if (line.has("submit")) {
    submit(script);
  } else {
    print_error(fmt::format("{}: written\n", script.file));
  }
  return ExitCode::kDone;
}

}  // namespace strata::app
