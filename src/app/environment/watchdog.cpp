#include "environment/watchdog.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "strata/app/config_file.hpp"
#include "strata/core/blocked_signals.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/log.hpp"
#include "strata/core/text.hpp"

#include "environment/host_name.hpp"
#include "environment/main_stack.hpp"

namespace strata::app {
namespace {

constexpr const char* kNotWaiting = ", not waiting";

/// The first of these variables that is set, as a number.
std::int64_t number_in(std::initializer_list<const char*> names, std::int64_t otherwise) {
  for (const char* name : names) {
    const char* const text = std::getenv(name);
    std::int64_t number = 0;
    if (text != nullptr && parse_int64(text, number)) {
      return number;
    }
  }
  return otherwise;
}

std::string text_in(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// The text of a heartbeat; empty where it cannot be read whole.
std::string read_heartbeat(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return text.ends_with('\n') ? text : "";
}

/// A heartbeat is "BEAT HOST PID STATE".
struct Heartbeat {
  std::string host;
  std::string pid;
  std::string state;
};

Heartbeat parse_heartbeat(const std::string& text) {
  const std::vector<std::string> words = split_words(text);
  if (words.size() < 4) {
    return {};
  }
  return {.host = words[1],
          .pid = words[2],
          .state = text.substr(text.find(words[2]) + words[2].size() + 1,
                               text.size() - text.find(words[2]) - words[2].size() - 2)};
}

/// Names the launch, with the same text on all ranks. Under mpirun in a Slurm job the ranks of its
/// own node lack the step's number, but all have the namespace. A requeued job repeats it.
std::string job_text() {
  const std::string space = text_in("PMIX_NAMESPACE");
  return !space.empty()
             ? space + "." + text_in("SLURM_RESTART_COUNT")
             : text_in("SLURM_JOB_ID") + "." + text_in("SLURM_STEP_ID") + text_in("PMI_JOBID");
}

/// Deletes the heartbeats that killed jobs left behind.
void delete_old(const std::filesystem::path& directory) {
  std::error_code error;
  const auto oldest = std::filesystem::file_time_type::clock::now() - std::chrono::hours(24);
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    std::error_code ignored;
    if (entry.last_write_time(ignored) < oldest) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
}

}  // namespace

WatchdogSetup watchdog_setup(Arguments arguments) {
  WatchdogSetup setup{
      .timeout_seconds = plan::RunConfig().run.timeout_seconds,
      .run_directory = {},
      .rank = number_in({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}, 0),
      .ranks = number_in({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1),
      .job = hash_text(hash_of(job_text())).substr(0, 8)};
  std::string path;
  std::vector<std::string> settings;
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--")) {
      path = path.empty() ? argument : path;
    } else if (argument.substr(0, argument.find('=')).find('.') != std::string::npos) {
      settings.push_back(argument);
    }
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    settings.insert(settings.begin(), "--run.dir=" + path);
    path = (std::filesystem::path(path) / "config.ini").string();
  }
  try {
    const plan::RunConfig config = read_config(path, settings).config;
    setup.timeout_seconds = config.run.timeout_seconds;
    setup.run_directory = config.run.dir;
  } catch (const std::exception&) {
    // All ranks report it together, once MPI has started.
    setup.run_directory.clear();
  }
  return setup;
}

Watchdog::Watchdog(WatchdogSetup setup, const comm::Activity& activity)
    : setup_(std::move(setup)),
      activity_(activity),
      main_thread_(pthread_self()),
      interval_seconds_(std::clamp(setup_.timeout_seconds / 15.0, 0.1, 5.0)),
      peers_(static_cast<std::size_t>(setup_.ranks)) {
  if (setup_.ranks < 2) {
    return;
  }
  prepare_main_stack();
  const BlockedSignals blocked;
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) {
    return;
  }
  {
    const std::scoped_lock lock(mutex_);
    state_ = State::kEnded;
  }
  ended_.notify_all();
  thread_.join();
  if (beats_ > 0) {
    // Each directory, once it is empty.
    std::error_code ignored;
    const std::filesystem::path own = heartbeat_of(setup_.rank);
    std::filesystem::remove(own, ignored);
    ::rmdir(own.parent_path().c_str());
    ::rmdir(setup_.run_directory.c_str());
  }
}

std::filesystem::path Watchdog::heartbeat_of(std::int64_t rank) const {
  return setup_.run_directory / "heartbeats" / fmt::format("{}-rank-{}", setup_.job, rank);
}

void Watchdog::watch() {
  // A job that ends within seconds leaves no trace in its run directory.
  const double first_beat = now_seconds() + std::min(5.0, setup_.timeout_seconds / 3.0);
  constexpr double kGapSeconds = 1.0;
  // The main thread asks for the missing ranks after its wait has ended with an error.
  constexpr double kReportSeconds = 3.0;
  std::unique_lock lock(mutex_);
  double last = now_seconds();
  // This thread may start late.
  running_since_ = last;
  while (!ended_.wait_for(lock, std::chrono::duration<double>(interval_seconds_),
                          [&] { return state_ == State::kEnded; })) {
    const double now = now_seconds();
    if (std::exchange(last, now) + interval_seconds_ + kGapSeconds < now) {
      running_since_ = now;
    }
    lock.unlock();
    if (!setup_.run_directory.empty() && now_seconds() > first_beat) {
      beat();
    }
    const comm::WaitState wait = activity_.wait_state();
    end_if_stuck(wait);
    lock.lock();
    if (wait.seconds > setup_.timeout_seconds / 4.0) {
      look_at_peers();
    } else if (now_seconds() - looked_ > kReportSeconds) {
      looking_since_ = 0.0;
    }
  }
}

std::string Watchdog::state_text() const {
  std::string text = fmt::format("{}", name_of(activity_.phase()));
  if (activity_.step() > 0) {
    text += fmt::format(", step {}", activity_.step());
  }
  const std::int64_t operations = activity_.operations();
  if (operations > 0) {
    const comm::OperationRecord last = activity_.operation(operations - 1);
    text += fmt::format(", last operation {} {} of the {}", last.kind, last.number, last.group);
  }
  const comm::WaitState wait = activity_.wait_state();
  return text + (wait.seconds > 0.0
                     ? fmt::format(", waiting {:.0f} s to {}", wait.seconds, wait.what)
                     : kNotWaiting);
}

void Watchdog::beat() {
  const std::filesystem::path path = heartbeat_of(setup_.rank);
  if (beats_++ == 0) {
    std::error_code ignored;
    std::filesystem::create_directories(path.parent_path(), ignored);
    if (setup_.rank == 0) {
      delete_old(path.parent_path());
    }
  }
  const std::string text =
      fmt::format("{} {} {} {}\n", beats_, host_name(), getpid(), state_text());
  const int file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file >= 0) {
    // A heartbeat that cannot be written counts as a missing one.
    static_cast<void>(::write(file, text.data(), text.size()) != 0);
    ::close(file);
  }
}

void Watchdog::look_at_peers() {
  const double now = now_seconds();
  // At most 200 files a second.
  if (setup_.run_directory.empty() || now < looked_ + 0.005 * static_cast<double>(setup_.ranks)) {
    return;
  }
  const bool begins = looking_since_ == 0.0;
  for (std::int64_t rank = 0; rank < setup_.ranks; ++rank) {
    std::string text = read_heartbeat(heartbeat_of(rank));
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (begins || (!text.empty() && text != peer.heartbeat)) {
      peer = {.heartbeat = std::move(text), .changed_seconds = now};
    }
  }
  looking_since_ = begins ? now : looking_since_;
  looked_ = now_seconds();
}

std::string Watchdog::silent_ranks(double seconds) const {
  std::string text;
  const double now = now_seconds();
  for (std::int64_t rank = 0; rank < setup_.ranks && looking_since_ > 0.0; ++rank) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    const double age = now - peer.changed_seconds;
    if (rank == setup_.rank || age < seconds) {
      continue;
    }
    const Heartbeat last = parse_heartbeat(peer.heartbeat);
    text += peer.heartbeat.empty()
                ? fmt::format(". Rank {} has not written a heartbeat", rank)
                : fmt::format(
                      ". Rank {} (host {}, process {}) has not responded for {:.0f} s; its "
                      "last heartbeat: {}",
                      rank, last.host, last.pid, age, last.state);
  }
  return text;
}

std::string Watchdog::missing_ranks() {
  constexpr double kIntervals = 4.0;
  const std::scoped_lock lock(mutex_);
  if (looking_since_ == 0.0) {
    return "";
  }
  look_at_peers();
  std::string text = silent_ranks(std::max(0.8, kIntervals * interval_seconds_));
  for (std::int64_t rank = 0; rank < setup_.ranks && text.empty(); ++rank) {
    const Heartbeat last = parse_heartbeat(peers_[static_cast<std::size_t>(rank)].heartbeat);
    if (rank != setup_.rank && last.state.ends_with(kNotWaiting)) {
      text = fmt::format(". Rank {} (host {}, process {}) responds but waits for nobody: {}", rank,
                         last.host, last.pid, last.state);
    }
  }
  return text;
}

void Watchdog::end_if_stuck(const comm::WaitState& wait) {
  // Within these seconds the main thread reports its own timeouts.
  constexpr double kGraceSeconds = 1.0;
  const double timeout = setup_.timeout_seconds;
  if (wait.seconds < timeout + kGraceSeconds || now_seconds() < running_since_ + timeout) {
    return;
  }
  std::string missing;
  if (wait.kind == comm::WaitKind::kMpiCall) {
    missing = missing_ranks();
  } else {
    // The main thread may wait longer, because a save takes long; but not for a rank that is gone.
    const std::scoped_lock lock(mutex_);
    missing = silent_ranks(timeout / 2.0);
    if (missing.empty()) {
      return;
    }
  }
  const std::string message = fmt::format(
      "timed out after {:.0f} s waiting to {}. Submit the job again with "
      "--run.resume=auto; run.timeout sets the limit{}",
      wait.seconds, wait.what, missing);
  print_error(fmt::format("strata: rank {}: {}\n", setup_.rank, message));
  write_report(message);
  std::_Exit(static_cast<int>(ExitCode::kPeer));
}

void Watchdog::write_report(const std::string& message) const {
  if (setup_.run_directory.empty() || setup_.ranks < 2) {
    return;
  }
  std::error_code ignored;
  std::filesystem::create_directories(setup_.run_directory, ignored);
  std::string text = fmt::format("rank {} on {}, process {}: {}\n{}\n\noperations, oldest first:\n",
                                 setup_.rank, host_name(), getpid(), message, state_text());
  const std::int64_t operations = activity_.operations();
  for (std::int64_t i = std::max<std::int64_t>(0, operations - comm::Activity::kKept);
       i < operations; ++i) {
    const comm::OperationRecord one = activity_.operation(i);
    text += fmt::format("  {} {} of the {}{}, {} bytes\n", one.kind, one.number, one.group,
                        one.peer < 0 ? "" : fmt::format(", rank {} there", one.peer), one.bytes);
  }
  text += "\nstack of the main thread:\n" + main_stack(main_thread_);
  const std::filesystem::path path =
      setup_.run_directory / fmt::format("report-rank-{}.txt", setup_.rank);
  std::filesystem::remove(path, ignored);
  std::ofstream(path) << text;
}

}  // namespace strata::app
