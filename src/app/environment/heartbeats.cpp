#include "environment/heartbeats.hpp"

#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "strata/core/host_name.hpp"

namespace strata::app {
namespace {

constexpr const char* kNotWaiting = ", not waiting";

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
  Heartbeat result;
  std::string beat;
  std::istringstream words(text);
  words >> beat >> result.host >> result.pid >> std::ws;
  std::getline(words, result.state);
  return result;
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

std::string state_text(const comm::Activity& activity) {
  std::string text = fmt::format("{}", name_of(activity.phase()));
  if (activity.step() > 0) {
    text += fmt::format(", step {}", activity.step());
  }
  const std::int64_t operations = activity.operations();
  if (operations > 0) {
    const comm::OperationRecord last = activity.operation(operations - 1);
    text += fmt::format(", last operation {} {} of the {}", last.kind, last.number, last.group);
  }
  const comm::WaitState wait = activity.wait_state();
  return text + (wait.seconds > 0.0
                     ? fmt::format(", waiting {:.0f} s to {}", wait.seconds, wait.what)
                     : kNotWaiting);
}

Heartbeats::Heartbeats(std::filesystem::path directory, std::string job, std::int64_t rank,
                       std::int64_t ranks, double (*clock)())
    : run_directory_(std::move(directory)),
      job_(std::move(job)),
      rank_(rank),
      clock_(clock),
      peers_(static_cast<std::size_t>(ranks)) {}

Heartbeats::~Heartbeats() {
  if (beats_ > 0) {
    // Each directory, once it is empty.
    std::error_code ignored;
    const std::filesystem::path own = file_of(rank_);
    std::filesystem::remove(own, ignored);
    ::rmdir(own.parent_path().c_str());
    ::rmdir(run_directory_.c_str());
  }
}

std::filesystem::path Heartbeats::file_of(std::int64_t rank) const {
  return run_directory_ / "heartbeats" / fmt::format("{}-rank-{}", job_, rank);
}

std::filesystem::path Heartbeats::claim() const {
  return run_directory_ / "heartbeats" / (job_ + "-reported");
}

void Heartbeats::write(const std::string& state) {
  const std::filesystem::path path = file_of(rank_);
  if (beats_++ == 0) {
    std::error_code ignored;
    std::filesystem::create_directories(path.parent_path(), ignored);
    if (rank_ == 0) {
      delete_old(path.parent_path());
      std::filesystem::remove(claim(), ignored);
    }
  }
  const std::string text = fmt::format("{} {} {} {}\n", beats_, host_name(), getpid(), state);
  const int file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file >= 0) {
    // A heartbeat that cannot be written counts as a missing one.
    static_cast<void>(::write(file, text.data(), text.size()) != 0);
    ::close(file);
  }
}

void Heartbeats::look_at_peers() {
  const double begin = clock_();
  {
    const std::scoped_lock lock(mutex_);
    if (begin < looked_ + 0.005 * static_cast<double>(peers_.size())) {
      return;
    }
  }
  std::vector<std::string> texts(peers_.size());
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (static_cast<std::int64_t>(rank) != rank_) {
      texts[rank] = read_heartbeat(file_of(static_cast<std::int64_t>(rank)));
    }
  }
  const std::scoped_lock lock(mutex_);
  const bool begins = looking_since_ == 0.0;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (begins || (!texts[rank].empty() && texts[rank] != peers_[rank].heartbeat)) {
      peers_[rank] = {.heartbeat = std::move(texts[rank]), .changed_seconds = begin};
    }
  }
  looking_since_ = begins ? begin : looking_since_;
  looked_ = clock_();
}

void Heartbeats::stop_looking() {
  // The main thread asks for the missing ranks after its wait has ended with an error.
  constexpr double kReportSeconds = 3.0;
  const std::scoped_lock lock(mutex_);
  if (clock_() - looked_ > kReportSeconds) {
    looking_since_ = 0.0;
  }
}

bool Heartbeats::first_to_report(const std::filesystem::path& claim) {
  std::error_code ignored;
  std::filesystem::create_directories(claim.parent_path(), ignored);
  const int file = ::open(claim.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const bool taken = file < 0 && errno == EEXIST;
  if (file >= 0) {
    ::close(file);
  }
  return !taken;
}

std::string Heartbeats::silent_ranks(double seconds) const {
  std::string text;
  const std::scoped_lock lock(mutex_);
  for (std::size_t rank = 0; rank < peers_.size() && looking_since_ > 0.0; ++rank) {
    const Peer& peer = peers_[rank];
    // Up to the last look, because a look may hang.
    const double age = looked_ - peer.changed_seconds;
    if (static_cast<std::int64_t>(rank) == rank_ || age < seconds) {
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

std::string Heartbeats::idle_rank() const {
  const std::scoped_lock lock(mutex_);
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    const Heartbeat last = parse_heartbeat(peers_[rank].heartbeat);
    if (static_cast<std::int64_t>(rank) != rank_ && last.state.ends_with(kNotWaiting)) {
      return fmt::format(". Rank {} (host {}, process {}) responds but waits for nobody: {}", rank,
                         last.host, last.pid, last.state);
    }
  }
  return "";
}

}  // namespace strata::app
