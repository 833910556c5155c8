#include "strata/io/directory_lock.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "strata/core/blocked_signals.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/io/text_file.hpp"

#include "files/lock_owner.hpp"
#include "files/posix_file.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::optional<std::string> read_lock(const fs::path& path, ExitCode code = ExitCode::kUsage) {
  constexpr std::size_t kMostBytes = 4096;
  constexpr int kAttempts = 10;
  constexpr double kPauseSeconds = 0.05;
  for (int attempt = 1;; ++attempt) {
    try {
      return read_text(path, code, kMostBytes);
    } catch (const FileSystemError& error) {
      // Over NFS another contender has renamed its file to this name: the open file is gone.
      if (error.number() != ESTALE || attempt == kAttempts) {
        throw;
      }
    }
    sleep_for(kPauseSeconds);
  }
}

/// A file with the text of a future lock under a name of its own; the name is removed at the end.
class Candidate {
 public:
  Candidate(const fs::path& lock, const LockOwner& self, const LockOptions& options)
      : path_(lock.parent_path() /
              fmt::format(".{}.{}.{}.{}", options.name, self.host, self.pid, self.nonce)),
        file_(path_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW) {
    const std::string text = text_of(self);
    const bool written =
        file_.is_open() &&
        ::pwrite(file_.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
        ::fsync(file_.get()) == 0;
    if (!written) {
      const int error = errno;
      ::unlink(path_.c_str());
      fail(ExitCode::kUsage, "cannot write {}: {}; choose another {}", path_.string(),
           std::strerror(error), options.setting);
    }
  }
  ~Candidate() { ::unlink(path_.c_str()); }
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;

  /// Gives the file a second name. False where another file has that name.
  [[nodiscard]] bool link_to(const fs::path& name) const { return link_file(path_, name); }

  /// Replaces the lock of an owner that is gone.
  void replace(const fs::path& lock) const {
    if (::rename(path_.c_str(), lock.c_str()) != 0) {
      fail(ExitCode::kUsage, "cannot replace the lock {}: {}", lock.string(), std::strerror(errno));
    }
  }

  /// The open file, whatever its names are.
  [[nodiscard]] FileDescriptor take_file() { return std::move(file_); }

 private:
  fs::path path_;
  FileDescriptor file_;
};

/// The lock file and the claims to succeed its owner. Who takes over the lock with nonce N first
/// links its candidate to the claim ".NAME.after-N", so that one contender wins. The claim of a
/// contender that died in between has a nonce too, and so a claim to succeed it.
struct Succession {
  std::vector<fs::path> claims;
  std::optional<std::string> last;  ///< text of the lock or of the last claim
};

fs::path claim_after(const fs::path& lock, const LockOwner& owner) {
  std::string nonce = owner.nonce;
  // The nonce becomes a part of a path.
  if (nonce.find_first_not_of("0123456789abcdef") != std::string::npos) {
    nonce.clear();
  }
  return lock.parent_path() / fmt::format(".{}.after-{}", lock.filename().string(), nonce);
}

Succession read_succession(const fs::path& lock) {
  constexpr std::size_t kMostClaims = 100;
  Succession found;
  std::optional<std::string> text = read_lock(lock);
  while (text && found.claims.size() < kMostClaims) {
    found.last = text;
    const fs::path claim = claim_after(lock, lock_owner_of(*text));
    text = read_lock(claim);
    if (text) {
      found.claims.push_back(claim);
    }
  }
  return found;
}

[[noreturn]] void refuse(const fs::path& lock, const LockOwner& owner, const std::string& reason,
                         const LockOptions& options) {
  fail(
      ExitCode::kUsage,
      "{} is in use by {} ({}); wait until it ends, end it{}, or choose another {}. The lock is {}",
      options.subject.empty() ? lock.parent_path().string() : options.subject,
      description_of(owner), reason, owner.scheduler == "slurm" ? " with scancel" : "",
      options.setting, lock.string());
}

/// Watches the heartbeat of an owner that may run on another node.
OwnerVerdict watch(const fs::path& lock, const std::string& last, const LockOptions& options,
                   Log& log) {
  log.info("{} is locked by {}; watching its heartbeat for up to {:g} s",
           lock.parent_path().string(), description_of(lock_owner_of(last)), options.stale_seconds);
  const double end = now_seconds() + options.stale_seconds;
  while (now_seconds() < end) {
    sleep_for(std::min(1.0, options.heartbeat_seconds / 4));
    options.while_watching();
    const std::optional<std::string> now = read_succession(lock).last;
    if (!now || lock_owner_of(*now).nonce != lock_owner_of(last).nonce) {
      return {};  // the owner has released it, or another contender has taken it over
    }
    if (*now != last) {
      return {OwnerState::kAlive, "its heartbeat advances"};
    }
  }
  return {OwnerState::kGone,
          fmt::format("its heartbeat stood still for {:g} s", options.stale_seconds)};
}

/// Takes over from the last of a succession. False where another contender was faster.
bool take_over(const fs::path& lock, const Candidate& candidate, const Succession& judged) {
  const fs::path claim = claim_after(lock, lock_owner_of(*judged.last));
  if (!candidate.link_to(claim)) {
    return false;
  }
  // An earlier contender may have taken over and removed its claim before this one was made.
  const Succession now = read_succession(lock);
  const bool unchanged =
      now.claims.size() == judged.claims.size() + 1 && now.claims.back() == claim;
  if (unchanged) {
    candidate.replace(lock);
    for (const fs::path& earlier : judged.claims) {
      ::unlink(earlier.c_str());
    }
  }
  ::unlink(claim.c_str());
  return unchanged;
}

/// One attempt. False where the lock changed hands meanwhile.
bool try_to_take(const fs::path& lock, const Candidate& candidate, const LockOwner& self,
                 const LockOptions& options, Log& log) {
  if (candidate.link_to(lock)) {
    return true;
  }
  const Succession found = read_succession(lock);
  if (!found.last) {
    return false;  // just released
  }
  const LockOwner owner = lock_owner_of(*found.last);
  OwnerVerdict verdict = judge(owner, self);
  if (verdict.state == OwnerState::kUnknown) {
    verdict = watch(lock, *found.last, options, log);
  }
  if (verdict.state == OwnerState::kAlive) {
    refuse(lock, owner, verdict.reason, options);
  }
  if (verdict.state == OwnerState::kUnknown || !take_over(lock, candidate, found)) {
    return false;
  }
  log.info("the lock of {} is taken over from {}: {}", lock.parent_path().string(),
           description_of(owner), verdict.reason);
  return true;
}

/// Deletes the claims and candidates of contenders that are gone. A claim to succeed another owner
/// than the present one is good for nothing: who holds it sees that the lock has changed.
void remove_leftovers(const fs::path& lock, const LockOwner& self) {
  const std::string prefix = fmt::format(".{}.", lock.filename().string());
  std::error_code error;
  for (fs::directory_iterator entries(lock.parent_path(), error), end; !error && entries != end;
       entries.increment(error)) {
    const fs::path& path = entries->path();
    if (!path.filename().string().starts_with(prefix)) {
      continue;
    }
    try {
      const std::optional<std::string> text = read_lock(path);
      if (text && judge(lock_owner_of(*text), self).state == OwnerState::kGone) {
        ::unlink(path.c_str());
      }
    } catch (const Error&) {
      // Not a contender's; it stays.
    }
  }
}

}  // namespace

std::string make_nonce() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// The thread that advances the counter in the lock file. It writes through the open file and not
/// by name: after a takeover the name means the file of the next owner.
class DirectoryLock::Heartbeat {
 public:
  Heartbeat(FileDescriptor file, double interval_seconds)
      : file_(std::move(file)), interval_(interval_seconds) {
    const BlockedSignals blocked;
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

 private:
  void run(const std::stop_token& stop) const {
    std::mutex mutex;
    std::unique_lock guard(mutex);
    std::condition_variable_any stopped;
    for (std::int64_t beat = 1;
         !stopped.wait_for(guard, stop, interval_, [&] { return stop.stop_requested(); }); ++beat) {
      // A failure shows as a heartbeat that stands still. fdatasync sends the page to an NFS
      // server.
      const std::string digits = fmt::format("{:0{}}", beat, LockOwner::kBeatDigits);
      static_cast<void>(
          ::pwrite(file_.get(), digits.data(), digits.size(), LockOwner::kBeatOffset) < 0 ||
          ::fdatasync(file_.get()) != 0);
    }
  }

  FileDescriptor file_;
  std::chrono::duration<double> interval_;
  std::jthread thread_;  // last member: joined before the others are destroyed
};

DirectoryLock::DirectoryLock(const fs::path& directory, const LockOptions& options, Log& log)
    : path_(directory / options.name), options_(options) {
  constexpr int kAttempts = 100;
  constexpr double kPauseSeconds = 0.05;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const LockOwner self = this_process();
    Candidate candidate(path_, self, options);
    if (try_to_take(path_, candidate, self, options, log)) {
      nonce_ = self.nonce;
      remove_leftovers(path_, self);
      heartbeat_ = std::make_unique<Heartbeat>(candidate.take_file(), options.heartbeat_seconds);
      return;
    }
    sleep_for(kPauseSeconds);
  }
  fail(ExitCode::kUsage, "the lock {} changes hands too often; choose another {}", path_.string(),
       options.setting);
}

DirectoryLock::~DirectoryLock() {
  heartbeat_.reset();
  try {
    require_held();
    ::unlink(path_.c_str());
  } catch (const Error&) {
    // It is another process's now.
  }
}

bool DirectoryLock::is_visible(const fs::path& directory, const LockOptions& options,
                               const std::string& nonce, double timeout_seconds) {
  const auto sees = [&] {
    return lock_owner_of(read_lock(directory / options.name).value_or("")).nonce == nonce;
  };
  const double end = now_seconds() + timeout_seconds;
  while (!sees()) {
    if (now_seconds() > end) {
      return false;
    }
    // A change of the directory by this client makes NFS drop the attributes that it has cached.
    const fs::path probe = directory / fmt::format(".{}.probe.{}", options.name, make_nonce());
    if (FileDescriptor(probe, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW).is_open()) {
      ::unlink(probe.c_str());
    }
    sleep_for(std::min(0.5, timeout_seconds / 4));
  }
  return true;
}

std::optional<SeenLock> look_at_lock(const fs::path& directory, const LockOptions& options) {
  const fs::path path = directory / options.name;
  const std::optional<std::string> text = read_lock(path, ExitCode::kData);
  if (!text) {
    return std::nullopt;
  }
  const LockOwner owner = lock_owner_of(*text);
  LockOwner self = this_process();
  self.scheduler.clear();  // so that squeue is not called at each look
  std::error_code error;
  const fs::file_time_type changed = fs::last_write_time(path, error);
  const auto age = fs::file_time_type::clock::now() - changed;
  return SeenLock{
      .owner = description_of(owner),
      .beat = fmt::format("{} {}", owner.nonce, owner.heartbeat),
      .age_seconds = error ? 0.0 : std::max(0.0, std::chrono::duration<double>(age).count()),
      .state = judge(owner, self).state};
}

void DirectoryLock::require_held() const {
  const std::optional<std::string> text = read_lock(path_, ExitCode::kCheckpoint);
  const LockOwner owner = lock_owner_of(text.value_or(""));
  if (!text) {
    fail(ExitCode::kUsage,
         "the lock {} was deleted while this process held it; start again when no other process "
         "writes to {}",
         path_.string(), path_.parent_path().string());
  }
  if (owner.nonce != nonce_) {
    fail(ExitCode::kUsage,
         "the lock {} was taken over by {}, as this process had stood still for {:g} s; the other "
         "process goes on",
         path_.string(), description_of(owner), options_.stale_seconds);
  }
}

}  // namespace strata::io
