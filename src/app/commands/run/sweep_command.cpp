#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "strata/config/config_file.hpp"
#include "strata/config/options.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/io/text_file.hpp"
#include "strata/train/stop_signal.hpp"

#include "commands/commands.hpp"
#include "commands/planning/job_command.hpp"
#include "commands/planning/job_size.hpp"
#include "commands/run/sweep.hpp"
#include "environment/child_process.hpp"
#include "environment/run_directory.hpp"
#include "environment/versions.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

/// Runs a command with its output in `log`.
int run_logged(const std::vector<std::string>& words, const fs::path& log) {
  const int output =
      ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (output < 0) {
    fail(ExitCode::kUsage, "cannot write {}: {}; free some space or choose another --dir",
         log.string(), std::strerror(errno));
  }
  const int code = run_child(words, {.output = output, .errors = output});
  ::close(output);
  return code;
}

/// The line of a run's output, behind that of earlier starts, that says why it failed.
std::string reason_in(const fs::path& log, std::uintmax_t earlier_bytes) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 26;
  std::string reason;
  const std::string text =
      io::read_text(log, ExitCode::kUsage, earlier_bytes + kMostBytes).value_or("");
  for (const std::string& line :
       split_words(text.substr(std::min<std::uintmax_t>(earlier_bytes, text.size())), "\n")) {
    if (line.starts_with("strata: ")) {
      reason = line.substr(std::strlen("strata: "));
    }
  }
  return reason.empty() ? fmt::format("see {}", log.string()) : reason;
}

/// The exit code of a failed run, kPeer for one that the design does not list.
ExitCode exit_code_of(int code) {
  for (const ExitCode known :
       {ExitCode::kUsage, ExitCode::kData, ExitCode::kCheckpoint, ExitCode::kDiverged}) {
    if (code == static_cast<int>(known)) {
      return known;
    }
  }
  return ExitCode::kPeer;
}

struct SweepArguments {
  std::string config;
  std::vector<std::string> settings;
  fs::path directory;
  std::int64_t ranks = 0;  ///< of each run; 0: those of its grid
  std::string hostfile;
};

/// The words with which a run of the sweep starts or goes on.
std::vector<std::string> words_of(const SweepArguments& given, const SweepRun& run) {
  std::vector<std::string> settings = given.settings;
  settings.insert(settings.end(), run.settings.begin(), run.settings.end());
  const config::RunConfig config = config::read_config(given.config, settings).config;
  std::vector<std::string> words{own_program().string(), "train", given.config};
  words.insert(words.end(), settings.begin(), settings.end());
  words.insert(words.end(),
               {"--run.dir=" + (given.directory / run.name).string(), "--run.resume=auto"});
  const std::int64_t ranks = given.ranks > 0 ? given.ranks : ranks_asked_for(config);
  if (ranks > 1 || !given.hostfile.empty()) {
    words.push_back(fmt::format("--ranks={}", ranks));
  }
  if (!given.hostfile.empty()) {
    words.push_back("--hostfile=" + given.hostfile);
  }
  return words;
}

ExitCode run_all(const SweepArguments& given, const Sweep& sweep) {
  const std::vector<SweepRun> runs = runs_of(sweep);
  auto ended = ExitCode::kDone;
  std::size_t number = 0;
  for (const SweepRun& run : runs) {
    const fs::path directory = given.directory / run.name;
    const std::string title = fmt::format("run {} of {}, {}", ++number, runs.size(), run.name);
    if (result_of(directory, config::Best::kLoss).finished) {
      fmt::print("{}: finished already\n", title);
      continue;
    }
    fmt::print("{}: training\n", title);
    std::fflush(stdout);
    const fs::path log = given.directory / (run.name + ".out");
    std::error_code error;
    const std::uintmax_t earlier_bytes = fs::exists(log, error) ? fs::file_size(log, error) : 0;
    const int code = run_logged(words_of(given, run), log);
    if (train::stop_request() == train::StopRequest::kStop) {
      fmt::print("{}: stopped on request; the same command goes on\n", title);
      ended = ExitCode::kStoppedEarly;
      break;
    }
    if (code != 0) {
      const std::string reason = reason_in(log, earlier_bytes);
      fmt::print("{}: failed with exit code {}: {}\n", title, code, reason);
      ended = ended == ExitCode::kDone ? exit_code_of(code) : ended;
      if (exit_code_of(code) == ExitCode::kUsage) {
        fmt::print(
            "the sweep ends, because further runs would fail alike; mend it, and give the "
            "same command again\n");
        break;
      }
    }
    std::fflush(stdout);
  }
  fmt::print("{}", sweep_table(sweep, given.directory));
  return ended;
}

/// Writes the script of a Slurm job array, an element for each run.
void write_array(const config::CommandLine& line, const SweepArguments& given, const Sweep& sweep) {
  std::vector<std::vector<std::string>> elements;
  for (SweepRun& run : runs_of(sweep)) {
    run.settings.push_back("--run.dir=" + (given.directory / run.name).string());
    elements.push_back(std::move(run.settings));
  }
  write_job(line, {"--run.dir=" + given.directory.string()}, std::move(elements));
}

ExitCode sweep(const config::CommandLine& line) {
  train::install_stop_signals();
  SweepArguments given{.config = {}, .settings = line.settings(), .directory = {}};
  given.config = line.positions().front();
  if (line.has("table")) {
    fmt::print("{}", sweep_table(sweep_in(given.config), given.config));
    return ExitCode::kDone;
  }
  given.directory = line.value("dir", "");
  if (given.directory.empty() || !line.has("set")) {
    fail(ExitCode::kUsage, "strata sweep needs --{}; see strata sweep --help",
         line.has("set") ? "dir=DIR" : "set KEY=A,B,...");
  }
  given.ranks = line.has("ranks") ? line.count("ranks", 1, 1, config::kMostRanks) : 0;
  const config::GivenConfig shared = config::read_config(given.config, given.settings);
  if (shared.config.data.test.empty()) {
    fail(ExitCode::kUsage,
         "data.test is empty, and a sweep compares evaluations; name the test split");
  }
  Sweep sweep{.config = {}, .swept = {}};
  for (const std::string& text : line.values("set")) {
    const SweptSetting setting = swept_setting_of(text);
    for (const SweptSetting& other : sweep.swept) {
      if (other.key == setting.key) {
        fail(ExitCode::kUsage, "--set {} is given twice; give all values at once", setting.key);
      }
    }
    for (const std::string& value : setting.values) {
      std::vector<std::string> all = given.settings;
      all.push_back(fmt::format("--{}={}", setting.key, value));
      static_cast<void>(config::read_config(given.config, all));
    }
    sweep.swept.push_back(setting);
  }
  config::RunConfig config = shared.config;
  config.run.dir = given.directory.string();
  config.run.resume = config::Resume::kAuto;
  sweep.config = config::config_text(config);
  sweep.random = line.has("random") ? line.count("random", 1, 1, 10'000) : 0;
  sweep.seed = static_cast<std::uint64_t>(line.count("seed", 1, 0, 1'000'000'000));
  static_cast<void>(runs_of(sweep));
  const bool writes = line.has("submit") || line.has("output");
  for (const config::CommandOption& option : job_options()) {
    if (!writes && line.has(option.name) && option.name != "hostfile") {
      fail(ExitCode::kUsage,
           "--{} is an option of job arrays; add --submit or --output=FILE, or "
           "leave it out",
           option.name);
    }
  }
  if (writes && line.has("ranks")) {
    fail(ExitCode::kUsage,
         "--ranks is for runs one after the other; give --ranks-per-node and --nodes");
  }
  if (!writes) {
    given.hostfile = line.value("hostfile", "");
  }
  make_directory(given.directory, "--dir");
  Log log(Log::Output::kPrint);
  const io::DirectoryLock lock(given.directory,
                               {.name = "sweep.lock",
                                .setting = "--dir",
                                .while_watching = train::end_setup_on_stop_request},
                               log);
  open_sweep_directory(given.directory, sweep);
  if (writes) {
    write_array(line, given, sweep);
    return ExitCode::kDone;
  }
  return run_all(given, sweep);
}

}  // namespace

Commands sweep_commands() {
  config::Command command{
      .name = "sweep",
      .purpose = "train with each of several settings, rank the runs",
      .synopses = {{"CONFIG.ini --dir=DIR --set KEY=A,B,... [--set ...] [--section.key=value ...]"},
                   {"DIR --table", "prints the table of a sweep"}},
      .about =
          R"(Trains once for every combination of the values, one run after the other, each in a directory
of its own below DIR, and prints a table with the best run first. The same command continues after a stop or a failure
and skips finished runs. A failed run does not end the others, but one with a wrong config does. Ctrl-C or TERM stops with a checkpoint and exit code 75.

With --submit or --output it takes the options of strata job too.)",
      .options = {{"set", "KEY=A,B,...",
                   "a setting and its values; in a value that is a list, blanks stand for commas"},
                  {"random", "N", "N random combinations instead of all"},
                  {"seed", "S", "seed of the choice (default 1)"},
                  {"dir", "DIR",
                   "where the runs go; sweep.json there records the settings and values"},
                  {"ranks", "R", "ranks of each run (default: what its parallel.* asks for)"},
                  {"table", "", "prints the table only"},
                  {"submit", "", "hands all runs to Slurm as a job array instead"},
                  {"output", "FILE",
                   "writes the script of the array there; without --submit it is yours to submit"}},
      .settings = config::TakesSettings::kTaken,
      .positions = config::Positions::kOne,
      .needs = "one config file, before the options",
      .values = config::Values::kList,
      .alone = sweep};
  std::ranges::copy(job_options(), std::back_inserter(command.options));
  return {std::move(command)};
}

}  // namespace strata::app
