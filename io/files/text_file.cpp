#include "strata/io/text_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "strata/io/growing_file.hpp"

#include "files/line_cutter.hpp"
#include "files/lock_owner.hpp"
#include "files/posix_file.hpp"

namespace strata::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_to_read(const fs::path& path, ExitCode code, const char* advice) {
  const int error = errno;
  throw FileSystemError(
      code, error,
      fmt::format("cannot read {}: {}{}", path.string(), std::strerror(error), advice));
}

/// Opens a regular file, without following a link; the descriptor is not open where there is none.
FileDescriptor open_text(const fs::path& path, ExitCode code, struct stat& status,
                         const char* advice = "") {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  FileDescriptor file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!file.is_open() && errno == ENOENT) {
    return file;
  }
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    refuse_to_read(path, code, advice);
  }
  if (!S_ISREG(status.st_mode)) {
    fail(code, "{} is not a regular file; move it away", path.string());
  }
  return file;
}

/// Passes the blocks of a file from `begin` on to `take`, at most so many bytes. Returns: false
/// where that fails, with errno.
template <typename Take>
bool read_blocks(const FileDescriptor& file, std::int64_t begin, std::size_t most_bytes,
                 Take take) {
  std::string block(std::min(most_bytes, kBlockBytes), '\0');
  for (std::size_t done = 0; done < most_bytes;) {
    const ssize_t got = ::pread(file.get(), block.data(), std::min(block.size(), most_bytes - done),
                                begin + static_cast<std::int64_t>(done));
    if (got < 0 && errno != EINTR) {
      return false;
    }
    if (got == 0) {
      break;
    }
    const auto bytes = static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    take(std::string_view(block).substr(0, bytes));
    done += bytes;
  }
  return true;
}

/// As above, of a whole file. Returns: whether there is a file.
template <typename Take>
bool read_blocks(const fs::path& path, ExitCode code, std::size_t most_bytes, Take take) {
  struct stat status {};
  const FileDescriptor file = open_text(path, code, status);
  if (file.is_open() && !read_blocks(file, 0, most_bytes, take)) {
    refuse_to_read(path, code, "");
  }
  return file.is_open();
}

constexpr std::string_view kUnfinished = ".new";

/// A name of this process's own for a file that will be `path`. Deletes the files that killed
/// processes left under such names.
fs::path fresh_name(const fs::path& path) {
  const std::string prefix = "." + path.filename().string() + ".";
  std::error_code error;
  for (fs::directory_iterator files(path.parent_path(), error), end; !error && files != end;
       files.increment(error)) {
    const std::string name = files->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(kUnfinished) &&
        has_ended(std::string_view(name).substr(
            prefix.size(), name.size() - prefix.size() - kUnfinished.size()))) {
      std::error_code ignored;
      fs::remove(files->path(), ignored);
    }
  }
  return path.parent_path() / (prefix + owner_name()).append(kUnfinished);
}

/// Where a user's path leads through links; through /dev and /proc it leads to open files.
fs::path behind_links(fs::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    if (const std::string text = fs::absolute(path, error).string();
        text.starts_with("/dev/") || text.starts_with("/proc/")) {
      break;
    }
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

bool write_to(FileDescriptor file, std::string_view text) {
  return file.is_open() && write_fully(file.get(), text) && file.close();
}

}  // namespace

void refuse_hdf5(const fs::path& path) {
  constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1a\n";
  std::string begin(kHdf5.size(), '\0');
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) &&
      std::ifstream(path, std::ios::binary).read(begin.data(), std::ssize(begin)) &&
      begin == kHdf5) {
    fail(ExitCode::kUsage,
         "{} is an HDF5 file, as data sets and checkpoints are; choose another file",
         path.string());
  }
}

bool write_output(const fs::path& path, std::string_view text) {
  refuse_hdf5(path);
  const fs::path target = behind_links(path);
  struct stat status {};
  const bool exists = ::lstat(target.c_str(), &status) == 0;
  // A file that is write-protected stays, although its directory may be written to.
  if (!exists ||
      (S_ISREG(status.st_mode) && status.st_nlink == 1 && ::access(target.c_str(), W_OK) == 0)) {
    const fs::path fresh = fresh_name(target);
    FileDescriptor file(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (file.is_open()) {
      // Only root may keep another owner.
      const bool same_owner = !exists || ::fchown(file.get(), status.st_uid, status.st_gid) == 0;
      if (same_owner && (!exists || ::fchmod(file.get(), status.st_mode & 07777U) == 0)) {
        const bool replaced =
            write_to(std::move(file), text) && std::rename(fresh.c_str(), target.c_str()) == 0;
        const int error = errno;
        if (!replaced) {
          ::unlink(fresh.c_str());
          errno = error;
        }
        return replaced;
      }
      ::unlink(fresh.c_str());
    }
  }
  // The directory takes no new file, or what is there must stay what it is.
  return write_to(FileDescriptor(path, O_WRONLY | O_CREAT | O_TRUNC), text);
}

std::optional<std::string> read_text(const fs::path& path, ExitCode code, std::size_t most_bytes) {
  std::string text;
  const bool there =
      read_blocks(path, code, most_bytes, [&](std::string_view block) { text += block; });
  return there ? std::optional(std::move(text)) : std::nullopt;
}

void read_lines(const fs::path& path, ExitCode code,
                const std::function<void(std::string_view)>& take) {
  LineCutter cutter;
  read_blocks(path, code, std::numeric_limits<std::size_t>::max(),
              [&](std::string_view block) { cutter.add(block, take); });
  cutter.finish(take);
}

void GrowingFile::rewind(const std::function<void()>& restart) {
  if (done_ > 0) {
    restart();
  }
  done_ = 0;
}

void GrowingFile::read(const std::function<void()>& restart,
                       const std::function<void(std::string_view)>& line) {
  constexpr const char* kAdvice = "; check its permissions";
  struct stat status {};
  const FileDescriptor file = open_text(path_, code_, status, kAdvice);
  if (!file.is_open()) {
    rewind(restart);
    return;
  }
  // An inode number may be used again: the bytes that were read ended with a line feed.
  char last = '\n';
  if (status.st_ino != inode_ || status.st_size < done_ ||
      (done_ > 0 && ::pread(file.get(), &last, 1, done_ - 1) == 1 && last != '\n')) {
    rewind(restart);
  }
  inode_ = status.st_ino;
  LineCutter cutter;
  std::int64_t at = done_;
  const auto cut = [&](std::string_view block) {
    const auto ended = static_cast<std::int64_t>(cutter.add(block, line));
    done_ = ended > 0 ? at + ended : done_;
    at += std::ssize(block);
  };
  if (!read_blocks(file, done_, std::numeric_limits<std::size_t>::max(), cut)) {
    refuse_to_read(path_, code_, kAdvice);
  }
}

namespace {

/// Writes a file under a name of its own, which `publish(fresh)` makes that of `path`.
template <typename Publish>
void publish_text(const fs::path& path, const std::string& text, Syncing syncing,
                  const Publish& publish) {
  const bool syncs = syncing == Syncing::kOn;
  const fs::path fresh = fresh_name(path);
  FileDescriptor file(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  const bool published = file.is_open() && write_fully(file.get(), text) &&
                         (!syncs || ::fsync(file.get()) == 0) && file.close() && publish(fresh);
  const int error = errno;
  // Some file systems do not sync directories.
  const FileDescriptor directory(path.parent_path(), O_RDONLY | O_DIRECTORY);
  if (!published || (syncs && ::fsync(directory.get()) != 0 && errno == EIO)) {
    const int reason = published ? errno : error;
    ::unlink(fresh.c_str());
    fail(ExitCode::kUsage, "cannot write {}: {}; free some space or choose another run.dir",
         path.string(), std::strerror(reason));
  }
}

}  // namespace

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char character : text) {
    quoted += character == '"' ? "\"\"" : std::string(1, character);
  }
  return quoted + '"';
}

void replace_text(const fs::path& path, const std::string& text, Syncing syncing) {
  publish_text(path, text, syncing, [&](const fs::path& fresh) {
    return std::rename(fresh.c_str(), path.c_str()) == 0;
  });
}

bool create_text(const fs::path& path, const std::string& text) {
  bool created = false;
  publish_text(path, text, Syncing::kOn, [&](const fs::path& fresh) {
    try {
      created = link_file(fresh, path);
    } catch (...) {
      ::unlink(fresh.c_str());
      throw;
    }
    return ::unlink(fresh.c_str()) == 0;
  });
  return created;
}

bool link_file(const fs::path& file, const fs::path& name) {
  if (::link(file.c_str(), name.c_str()) == 0) {
    return true;
  }
  const int error = errno;
  // Over NFS a reply may be lost after the server has made the link; the client then repeats the
  // request and gets EEXIST.
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && status.st_nlink == 2) {
    return true;
  }
  if (error == EEXIST) {
    return false;
  }
  fail(ExitCode::kUsage, "cannot make {}: {}; choose a directory on a file system with hard links",
       name.string(), std::strerror(error));
}

AppendedFile::AppendedFile(const fs::path& path, const std::string& text, Syncing syncing)
    : end_bytes_(static_cast<std::int64_t>(text.size())), syncing_(syncing) {
  replace_text(path, text, syncing);
  FileDescriptor file(path, O_WRONLY | O_APPEND | O_NOFOLLOW);
  if (!file.is_open()) {
    fail(ExitCode::kUsage, "cannot write {}: {}; free some space or choose another run.dir",
         path.string(), std::strerror(errno));
  }
  file_ = file.release();
}

AppendedFile::~AppendedFile() {
  sync();
  ::close(file_);
}

bool AppendedFile::append(std::string_view text) {
  if (!torn_ && write_fully(file_, text)) {
    end_bytes_ += static_cast<std::int64_t>(text.size());
    return true;
  }
  // Removes the part that was written, or else at the next call.
  const bool retried = torn_;
  torn_ = ::ftruncate(file_, end_bytes_) != 0;
  return retried && !torn_ && append(text);
}

bool AppendedFile::sync() {
  return syncing_ == Syncing::kOff || ::fsync(file_) == 0;
}

}  // namespace strata::io
