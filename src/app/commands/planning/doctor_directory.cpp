#include "commands/planning/doctor_directory.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "strata/core/host_name.hpp"
#include "strata/io/text_file.hpp"

#include "commands/planning/machine_probes.hpp"

namespace strata::app {
namespace {

namespace fs = std::filesystem;

/// The first call that failed, as in "fsync: Input/output error"; empty where all succeeded.
class Trial {
 public:
  /// Pre: errno is that of `result`, a system call's.
  bool works(const char* call, long result) {
    if (result < 0 && failure_.empty()) {
      failure_ = fmt::format("{}: {}", call, std::strerror(errno));
    }
    return failure_.empty();
  }
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  std::string failure_;
};

/// Writes a new file and syncs it.
void write_trial_file(const fs::path& path, std::string_view bytes, Trial& trial) {
  const int file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (!trial.works("open", file)) {
    return;
  }
  trial.works("write", io::write_fully(file, bytes) ? 0 : -1);
  trial.works("fsync", ::fsync(file));
  trial.works("close", ::close(file));
}

std::string content_of(const fs::path& path) {
  std::ifstream in(path);
  std::string text;
  std::getline(in, text);
  return text;
}

/// Replaces one file by another of the same directory and syncs the directory.
void rename_over(const fs::path& path, Trial& trial) {
  const fs::path next = path.string() + ".new";
  const std::string text = "new";
  write_trial_file(path, std::string("old"), trial);
  write_trial_file(next, text, trial);
  trial.works("rename", ::rename(next.c_str(), path.c_str()));
  const int directory = ::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (trial.works("open", directory)) {
    trial.works("fsync of the directory", ::fsync(directory));
    ::close(directory);
  }
  if (trial.failure().empty() && (content_of(path) != text || fs::exists(next))) {
    errno = EIO;
    trial.works("rename over a file", -1);
  }
}

/// Why a lock on a file cannot be taken; empty where it can.
std::string lock_failure(const fs::path& path) {
  Trial trial;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (trial.works("open", file)) {
    trial.works("flock", ::flock(file, LOCK_EX | LOCK_NB));
    ::close(file);
  }
  return trial.failure();
}

/// Ends each rank's finding with what to do.
void add_findings(const std::vector<std::string>& findings, std::string_view remedy,
                  std::vector<std::string>& problems) {
  for (std::size_t rank = 0; rank < findings.size(); ++rank) {
    if (!findings[rank].empty()) {
      problems.push_back(fmt::format("rank {} on {}: {}", rank, findings[rank], remedy));
      return;  // the others say the same
    }
  }
}

}  // namespace

DirectoryReport try_directory(comm::Communicator& world, const std::string& directory) {
  DirectoryReport report;
  std::random_device random;
  const std::string nonce =
      world.all_gather_texts(fmt::format("{:08x}{:08x}", random(), random())).front();
  const fs::path shared = fs::path(directory) / ("doctor-" + nonce);
  const fs::path own = fmt::format("{}-{}", shared.string(), world.rank());
  std::error_code ignored;
  Trial first;
  if (world.rank() == 0) {
    fs::create_directories(directory, ignored);
    write_trial_file(shared, nonce, first);
  }
  constexpr std::string_view kNotWritable = "choose another run.dir, or ask for access and quota";
  if (const std::string failure = world.all_gather_texts(first.failure()).front();
      !failure.empty()) {
    report.problems.push_back(
        fmt::format("rank 0 cannot write in {} ({}): {}", directory, failure, kNotWritable));
    return report;
  }
  const auto gathered = [&](const std::string& failure) {
    return world.all_gather_texts(failure.empty() ? ""
                                                  : fmt::format("{}: {}", host_name(), failure));
  };
  const bool sees = content_of(shared) == nonce;
  add_findings(
      gathered(sees ? "" : fmt::format("{} is not the directory that rank 0 sees", directory)),
      "choose a run.dir on a file system that all nodes share", report.problems);
  Trial writes;
  rename_over(own, writes);
  const std::string& failure = writes.failure();
  add_findings(
      gathered(failure.empty() ? "" : fmt::format("cannot write in {} ({})", directory, failure)),
      kNotWritable, report.problems);
  const std::vector<std::string> locks = gathered(failure.empty() ? lock_failure(own) : "");
  constexpr std::int64_t kMib = std::int64_t{1} << 20;
  const std::optional<FileSpeed> speed =
      world.rank() == 0 ? file_speed(directory, 64 * kMib) : std::nullopt;
  fs::remove(own, ignored);
  fs::remove(own.string() + ".new", ignored);
  world.barrier();
  if (world.rank() == 0) {
    fs::remove(shared, ignored);
  }
  if (report.problems.empty()) {
    report.lines.push_back(
        fmt::format("{}: shared by all ranks, writable; rename and fsync work; rank 0 writes 64 "
                    "MiB at {:.0f} MiB/s",
                    directory, speed.value_or(FileSpeed()).write / kMib));
    const bool locked =
        std::ranges::all_of(locks, [](const std::string& text) { return text.empty(); });
    report.lines.push_back(
        locked ? "HDF5's file locks: work"
               : "HDF5's file locks: none on this file system; strata does not need them; other "
                 "readers (h5py) need HDF5_USE_FILE_LOCKING=FALSE");
  }
  return report;
}

}  // namespace strata::app
