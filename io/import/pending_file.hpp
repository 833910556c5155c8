#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "files/posix_file.hpp"

namespace strata::io {

/// A new, empty file under a temporary name that no other import has; the destructor removes it
/// unless it was published.
class PendingFile {
 public:
  /// Throws: Error(kData) where the file cannot be created.
  explicit PendingFile(std::filesystem::path final_path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  PendingFile(PendingFile&& other) noexcept
      : final_(std::move(other.final_)), temporary_(std::exchange(other.temporary_, {})) {}
  PendingFile& operator=(PendingFile&& other) noexcept {
    std::swap(final_, other.final_);
    std::swap(temporary_, other.temporary_);
    return *this;
  }

  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  /// Renames the file to its final name.
  void publish();

 private:
  std::filesystem::path final_;
  std::filesystem::path temporary_;  ///< empty once published or moved from
};

/// What a file in the output of an import is, by its name; a manifest goes with the shards.
enum class ImportedFile { kNone, kMaster, kShard, kPending, kPiece };
[[nodiscard]] ImportedFile kind_of_file(const std::string& name);

}  // namespace strata::io
