#include "files/lock_owner.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/chrono.h>
#include <sys/types.h>
#include <unistd.h>

#include "strata/core/environment.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/host_name.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/command_output.hpp"

namespace strata::io {
namespace {

using TextMember = std::pair<std::string_view, std::string LockOwner::*>;
using NumberMember = std::pair<std::string_view, std::int64_t LockOwner::*>;

constexpr std::array<TextMember, 8> kTexts{{{"nonce", &LockOwner::nonce},
                                            {"host", &LockOwner::host},
                                            {"boot", &LockOwner::boot},
                                            {"pid_namespace", &LockOwner::pid_namespace},
                                            {"scheduler", &LockOwner::scheduler},
                                            {"cluster", &LockOwner::cluster},
                                            {"job", &LockOwner::job},
                                            {"started", &LockOwner::started}}};
constexpr std::array<NumberMember, 4> kNumbers{{{"heartbeat", &LockOwner::heartbeat},
                                                {"pid", &LockOwner::pid},
                                                {"process_start", &LockOwner::process_start},
                                                {"restarts", &LockOwner::restarts}}};

/// State and start time of a process; nothing where there is none.
struct ProcessStatus {
  char state = '?';
  std::int64_t start = 0;
};

std::optional<ProcessStatus> status_of(std::int64_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(in, text);
  // The name, in parentheses, may hold spaces; 20 words after it comes the start time.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  const std::vector<std::string> words = split_words(text.substr(name_end + 1));
  constexpr std::size_t kStart = 19;
  ProcessStatus status;
  if (words.size() <= kStart || !parse_int64(words[kStart], status.start)) {
    return std::nullopt;
  }
  status.state = words.front().front();
  return status;
}

/// Whether a process has this id, also where /proc hides other users' processes (hidepid).
bool is_process(std::int64_t pid) {
  return pid > 0 && std::in_range<pid_t>(pid) &&
         (::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH);
}

OwnerVerdict judge_process(const LockOwner& owner) {
  const std::optional<ProcessStatus> status = status_of(owner.pid);
  if (!status && is_process(owner.pid)) {
    return {};  // /proc does not show it
  }
  if (!status || status->state == 'Z' || status->state == 'X') {
    return {OwnerState::kGone, fmt::format("process {} has ended", owner.pid)};
  }
  if (status->start != owner.process_start) {
    return {OwnerState::kGone, fmt::format("process {} is another one now", owner.pid)};
  }
  return {OwnerState::kAlive, fmt::format("process {} is running", owner.pid)};
}

/// Names where process ids mean the same processes, but for a boot in between.
std::string node_name(const LockOwner& owner) {
  return hash_text(hash_of(owner.host + "\n" + owner.pid_namespace));
}

/// What squeue says about a job; empty where it cannot be asked.
std::string job_state(const std::string& job) {
  if (job.empty() || job.find_first_not_of("0123456789") != std::string::npos) {
    return "";
  }
  const CommandOutput output = output_of(fmt::format("timeout 20 squeue -h -j {} -o %T 2>&1", job));
  if (output.text.find("Invalid job id") != std::string::npos) {
    return "UNKNOWN TO SLURM";
  }
  const std::vector<std::string> words = split_words(output.text);
  if (!output.succeeded || words.size() > 1) {
    return "";
  }
  return words.empty() ? "UNKNOWN TO SLURM" : words.front();
}

OwnerVerdict judge_job(const LockOwner& owner, const LockOwner& self) {
  if (owner.scheduler != "slurm" || self.scheduler != "slurm" || owner.cluster != self.cluster) {
    return {};
  }
  if (owner.job == self.job) {
    return owner.restarts < self.restarts
               ? OwnerVerdict{OwnerState::kGone, fmt::format("Slurm has requeued job {}", self.job)}
               : OwnerVerdict{};
  }
  // In these states no process of the job runs. A job that is COMPLETING may have some.
  constexpr std::array<std::string_view, 11> kEnded{
      "UNKNOWN TO SLURM", "PENDING",   "COMPLETED",     "CANCELLED", "FAILED",  "TIMEOUT",
      "NODE_FAIL",        "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"};
  const std::string state = job_state(owner.job);
  if (std::ranges::find(kEnded, state) == kEnded.end()) {
    return {};
  }
  return {OwnerState::kGone, fmt::format("Slurm's job {} is {}", owner.job, state)};
}

}  // namespace

LockOwner this_process() {
  LockOwner self;
  self.nonce = make_nonce();
  self.host = host_name();
  self.pid = ::getpid();
  self.process_start = status_of(self.pid).value_or(ProcessStatus()).start;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, self.boot);
  std::error_code ignored;
  self.pid_namespace = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  if (!environment("SLURM_JOB_ID").empty()) {
    self.scheduler = "slurm";
    self.cluster = environment("SLURM_CLUSTER_NAME");
    self.job = environment("SLURM_JOB_ID");
    static_cast<void>(parse_int64(environment("SLURM_RESTART_COUNT"), self.restarts));
  } else if (!environment("PBS_JOBID").empty()) {
    self.scheduler = "pbs";
    self.job = environment("PBS_JOBID");
  }
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  self.started = fmt::format("{:%Y-%m-%d %H:%M:%S %z}", fmt::localtime(now));
  return self;
}

std::string text_of(const LockOwner& owner) {
  std::string text = fmt::format("heartbeat = {:0{}}\n", owner.heartbeat, LockOwner::kBeatDigits);
  for (const auto& [name, member] : kNumbers) {
    text += member == &LockOwner::heartbeat ? "" : fmt::format("{} = {}\n", name, owner.*member);
  }
  for (const auto& [name, member] : kTexts) {
    text += fmt::format("{} = {}\n", name, owner.*member);
  }
  return text;
}

LockOwner lock_owner_of(const std::string& text) {
  LockOwner owner;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (equals == std::string::npos) {
      continue;
    }
    const std::string_view name = std::string_view(line).substr(0, equals);
    const std::string value = line.substr(equals + 3);
    for (const auto& [known, member] : kTexts) {
      owner.*member = known == name ? value : owner.*member;
    }
    for (const auto& [known, member] : kNumbers) {
      if (known == name) {
        static_cast<void>(parse_int64(value, owner.*member));
      }
    }
  }
  return owner;
}

std::string description_of(const LockOwner& owner) {
  if (owner.nonce.empty()) {
    return "an unknown process";
  }
  const std::string job =
      owner.job.empty() ? "" : fmt::format("{} job {}, ", owner.scheduler, owner.job);
  return printable(
      fmt::format("{}host {}, process {}, since {}", job, owner.host, owner.pid, owner.started));
}

OwnerVerdict judge(const LockOwner& owner, const LockOwner& self) {
  // Many machines may be called localhost.
  if (owner.host == self.host && !owner.boot.empty() && !owner.host.starts_with("localhost") &&
      owner.boot != self.boot) {
    return {OwnerState::kGone, fmt::format("{} has rebooted", printable(owner.host))};
  }
  if (owner.host == self.host && owner.boot == self.boot &&
      owner.pid_namespace == self.pid_namespace) {
    return judge_process(owner);
  }
  return judge_job(owner, self);
}

std::string owner_name() {
  const LockOwner self = this_process();
  return fmt::format("{}.{}.{}.{}", node_name(self), self.pid, self.process_start, self.nonce);
}

bool has_ended(std::string_view owner_name) {
  const std::vector<std::string> words = split_words(owner_name, ".");
  LockOwner owner;
  return words.size() == 4 && words[0] == node_name(this_process()) &&
         parse_int64(words[1], owner.pid) && parse_int64(words[2], owner.process_start) &&
         judge_process(owner).state == OwnerState::kGone;
}

}  // namespace strata::io
