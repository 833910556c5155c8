#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "strata/core/error.hpp"

namespace strata::io {

/// Reads a whole text file of a user, without the byte order mark that editors of Windows put
/// first. Throws: Error(code) for a file that does not exist, is no regular file (directory, FIFO,
/// socket, device), cannot be read, or has more than `most_bytes`.
[[nodiscard]] std::string read_input(const std::filesystem::path& path, std::int64_t most_bytes,
                                     ExitCode code);

/// Reads at most `most_bytes` of a regular file, without following a link; nothing where there is
/// no file. Throws: Error(code) where something else has the name, FileSystemError(code) where it
/// cannot be read.
[[nodiscard]] std::optional<std::string> read_text(const std::filesystem::path& path, ExitCode code,
                                                   std::size_t most_bytes);

/// Passes each line of a regular file to `take`, without its line feed, the last one also where it
/// has none; none where there is no file. A NUL ends a line too. Empty lines and lines of more than
/// 1 MiB are left out. Throws: as read_text().
void read_lines(const std::filesystem::path& path, ExitCode code,
                const std::function<void(std::string_view)>& take);

/// Writes all of `text` to a descriptor; false, with errno, where that fails.
[[nodiscard]] bool write_fully(int file, std::string_view text);

/// Throws: Error(kUsage) where a file that a user named as an output is one of HDF5: no text
/// replaces a data set or a checkpoint.
void refuse_hdf5(const std::filesystem::path& path);

/// Writes the file that a user named, unless it is one of HDF5, as refuse_hdf5() says; false, with
/// errno, where that fails. A regular file is replaced in one step: who reads the old one, as a
/// shell its script, keeps it, and of two writers one has the last word. A device, a pipe and a
/// file with several names are written to. Links are followed.
[[nodiscard]] bool write_output(const std::filesystem::path& path, std::string_view text);

/// Quotes a CSV field that contains a comma, a quote or a line break.
[[nodiscard]] std::string csv_field(const std::string& text);

/// Whether writes wait for the disk: not in a scratch directory, which nobody reads after a crash.
enum class Syncing { kOn, kOff };

/// Replaces a file in a run directory: a killed process leaves the old text or the new one, and
/// both file and directory are synced. The text is first written under a name that no other
/// process chooses; such files of processes of this node that have ended are deleted.
/// Throws: Error(kUsage).
void replace_text(const std::filesystem::path& path, const std::string& text,
                  Syncing syncing = Syncing::kOn);

/// As replace_text(), but of several processes the first one wins, and there is no file before.
/// Returns: whether this process wrote the file. Throws: Error(kUsage).
[[nodiscard]] bool create_text(const std::filesystem::path& path, const std::string& text);

/// Gives a file a second name; false where another file has that name. Throws: Error(kUsage).
[[nodiscard]] bool link_file(const std::filesystem::path& file, const std::filesystem::path& name);

/// A file in a run directory that is appended to.
class AppendedFile {
 public:
  /// Replaces the file by one that begins with `text`. Throws: Error(kUsage).
  AppendedFile(const std::filesystem::path& path, const std::string& text,
               Syncing syncing = Syncing::kOn);
  /// Syncs the file.
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  /// Appends all of `text`, or nothing and returns false, as on a full disk.
  [[nodiscard]] bool append(std::string_view text);
  /// Calls fsync; false where that fails.
  bool sync();

 private:
  int file_ = -1;
  std::int64_t end_bytes_ = 0;
  Syncing syncing_;
  bool torn_ = false;  ///< bytes after the end could not be removed
};

}  // namespace strata::io
