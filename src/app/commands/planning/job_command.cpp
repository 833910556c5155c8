#include "commands/planning/job_command.hpp"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "strata/comm/mpi_library.hpp"
#include "strata/config/config_file.hpp"
#include "strata/config/site_file.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/io/command_output.hpp"

#include "commands/commands.hpp"
#include "commands/output_file.hpp"
#include "commands/planning/job_script.hpp"
#include "commands/planning/job_size.hpp"
#include "commands/run/sweep.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

/// Adds the site's options, which the command line's override, and checks the texts.
void complete(config::CommandLine& line) {
  std::vector<std::string> names{"output"};
  std::ranges::transform(job_options(), std::back_inserter(names), &config::CommandOption::name);
  for (const auto& [name, value] : config::read_site_file(names)) {
    require_one_line(fmt::format("--{}={}", name, value));
    line.set_default(name, value);
  }
  for (const std::string& argument : line.arguments()) {
    if (std::ranges::find(line.settings(), argument) == line.settings().end()) {
      require_one_line(argument);
    }
  }
}

/// Seconds of a time limit in Slurm's notation.
std::int64_t limit_of(const std::string& text) {
  const auto refuse = [&] {
    config::refuse_value("time", text,
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

void set_times(const config::CommandLine& line, JobScript& script) {
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
  const std::filesystem::path self = own_program();
  const std::filesystem::path relative = self.lexically_relative(std::filesystem::current_path());
  return (relative.empty() || *relative.begin() == ".." ? self : relative).string();
}

void set_names(const config::CommandLine& line, const config::RunConfig& config,
               JobScript& script) {
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
  script.name = line.value(
      "job-name", in_name((run.has_filename() ? run : run.parent_path()).filename().string()));
  const bool pbs = script.scheduler == Scheduler::kPbs;
  if (script.name.find_first_of(pbs ? "/ " : "/") != std::string::npos) {
    config::refuse_value("job-name", script.name,
                         pbs ? "a name without / and blanks" : "a name without /");
  }
  const bool shell = script.scheduler == Scheduler::kShell;
  script.file = line.value(
      "output", script.name + (shell ? ".sh" : fmt::format(".{}", name_of(script.scheduler))));
  if (script.file.starts_with('-')) {
    script.file.insert(0, "./");  // no option of the command that submits it
  }
}

JobScript job_of(const config::CommandLine& line, const std::vector<std::string>& settings) {
  JobScript script;
  script.settings = line.settings();
  script.settings.insert(script.settings.end(), settings.begin(), settings.end());
  config::GivenConfig given = config::read_config(line.positions().front(), script.settings);
  script.scheduler = line.choice<Scheduler>("scheduler")
                         .value_or(line.has("hostfile") ? Scheduler::kShell : Scheduler::kSlurm);
  const bool slurm = script.scheduler == Scheduler::kSlurm;
  script.launcher =
      line.choice<Launcher>("launcher").value_or(slurm ? Launcher::kSrun : Launcher::kMpirun);
  if (!slurm && script.launcher == Launcher::kSrun) {
    fail(ExitCode::kUsage, "--launcher=srun needs Slurm; give --launcher=mpirun, or leave it out");
  }
  const comm::LaunchProgram* const program = comm::launch_program();
  if (program != nullptr) {
    script.mpi_type = program->slurm_type;
  }
  const bool is_open_mpi = program != nullptr && program->family == comm::MpiFamily::kOpenMpi;
  if (!is_open_mpi && script.launcher == Launcher::kMpirun &&
      script.scheduler != Scheduler::kFlux) {
    fail(ExitCode::kUsage,
         "scripts for mpirun have the options of Open MPI's, and this strata was built with {}; "
         "in Slurm give --launcher=srun, elsewhere start \"strata train CONFIG.ini --ranks=N\" in "
         "a script of your own",
         comm::mpi_library_text());
  }
  set_times(line, script);
  set_job_size(line, given, script);
  set_names(line, given.config, script);
  return script;
}

/// Runs a command and returns its output. Throws: Error(kUsage) with the output where it fails.
std::string output_of(const std::string& command) {
  const io::CommandOutput ended = io::output_of(command + " 2>&1");
  std::string output(trimmed(ended.text));
  if (!ended.succeeded) {
    fail(ExitCode::kUsage, "\"{}\" refused the script: {}", command, output);
  }
  return output;
}

/// Hands the script to the scheduler, or a chain of jobs.
void submit(const JobScript& script) {
  if (script.scheduler == Scheduler::kShell) {
    fail(ExitCode::kUsage, "--submit needs a scheduler; run the script with bash {}", script.file);
  }
  std::string before;
  for (std::int64_t job = 0; job < script.chain; ++job) {
    const std::string after = before.empty() ? "" : " " + submit_after(script.scheduler, before);
    const std::vector<std::string> lines =
        split_words(output_of(fmt::format("{}{} {}", submit_command(script.scheduler), after,
                                          shell_quoted(script.file))),
                    "\n");
    // The id stands behind warnings, and before the name of a cluster.
    before = lines.empty() ? "" : lines.back().substr(0, lines.back().find(';'));
    fmt::print("{}\n", before);
  }
}

/// The command as a shell reads it, without --submit.
std::string command_text(const config::CommandLine& line) {
  std::string text = "strata " + line.command();
  for (const std::string& argument : line.arguments()) {
    text += argument == "--submit" ? "" : " " + shell_quoted(argument);
  }
  return text;
}

}  // namespace

std::vector<config::CommandOption> job_options() {
  return {
      {"nodes", "N", "nodes (default 1); MIN-MAX: fewer replicas on fewer nodes (Slurm)"},
      {"spares", "K",
       "further nodes, which replace lost ones without a new job (Slurm, --hostfile)"},
      {"ranks-per-node", "R", "ranks on a node (default: what parallel.* asks for)"},
      {"time", "T", "time limit: MINUTES, HH:MM:SS or DAYS-HH[:MM[:SS]]"},
      {"cpus-per-task", "C", "cores of a rank (default: run.threads, else 8 with a GPU, else 4)"},
      {"mem", "M", "memory of a node, as in 64G (default: from the plan)"},
      {"gpu-memory", "M", "memory of a GPU; a plan that does not fit is refused"},
      {"partition", "P", "partition or queue"},
      {"account", "A", "account or bank"},
      {"qos", "Q", "quality of service"},
      {"constraint", "F", "features that nodes must have"},
      {"modules", "LIST", "environment modules to load"},
      {"container", "IMAGE", "image in which apptainer runs the ranks"},
      {"launcher", config::words_of<Launcher>(),
       "what starts the ranks (default srun; without Slurm mpirun)"},
      {"fence", "F", "SLURM_PMIX_FENCE, which Open MPI's start under srun uses (default ring)"},
      {"hostfile", "FILE",
       "a plain shell script for mpirun on these hosts, for clusters without a scheduler"},
      {"scheduler", config::words_of<Scheduler>(), "batch system of the script (default slurm)"},
      {"signal", "SECONDS",
       "time from the stop signal to the limit (default 120, at most a quarter of the limit)"},
      {"starts", "K",
       "consecutive starts without a new checkpoint before the job gives up (default 3)"},
      {"chain", "N",
       "N jobs, each of which starts where the one before it left off, instead of a requeue"},
      {"job-name", "NAME", "name of the job (default: that of run.dir)"},
      {"program", "FILE", "the executable (default: this one)"}};
}

Commands job_commands() {
  config::Command command{
      .name = "job",
      .purpose = "write a job script for Slurm, PBS, Flux or mpirun",
      .synopses =
          {{"CONFIG.ini --nodes=N --time=T [options] [--section.key=value ...] [--submit]"}},
      .about =
          R"(Writes a job script that trains, stops ahead of the time limit with a checkpoint and restarts.
Checks that the grid fits the nodes, and prints the memory of a rank.

Defaults of a site are [job] lines "name = value" with these names in $STRATA_SITE, ~/.config/strata/site.ini or
/etc/strata/site.ini, whichever is first.)",
      .options = job_options(),
      .settings = config::TakesSettings::kTaken,
      .positions = config::Positions::kOne,
      .needs = "one config file",
      .alone = [](const config::CommandLine& line) {
        write_job(line);
        return ExitCode::kDone;
      }};
  command.options.push_back({"output", "FILE", "writes the script there instead of to stdout"});
  command.options.push_back(
      {"submit", "", "hands the script to the scheduler and prints the job's id"});
  return {std::move(command)};
}

void write_job(config::CommandLine line, const std::vector<std::string>& settings,
               std::vector<std::vector<std::string>> elements) {
  complete(line);
  JobScript script = job_of(line, settings);
  if (!elements.empty() && (script.scheduler != Scheduler::kSlurm || script.chain > 1)) {
    fail(ExitCode::kUsage,
         "a job array needs --scheduler=slurm and no --chain; its elements requeue themselves");
  }
  script.elements = std::move(elements);
  script.command = command_text(line);
  const std::string text = script_text(script);
  if (!line.has("output") && !line.has("submit")) {
    fmt::print("{}", text);
    return;
  }
  write_file(script.file, text);
  if (line.has("submit")) {
    submit(script);
  } else {
    print_error(fmt::format("{}: written\n", script.file));
  }
}

}  // namespace strata::app
