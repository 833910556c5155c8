#include "import/import_output.hpp"

#include <vector>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "files/posix_file.hpp"
#include "import/pending_file.hpp"

namespace strata::io {
namespace {

void refuse_existing(const ImportOptions& options) {
  for (const char* master : {"train.h5", "test.h5"}) {
    const std::filesystem::path path = options.output / master;
    std::error_code error;
    if (options.existing == Existing::kRefuse && std::filesystem::exists(path, error)) {
      fail(ExitCode::kUsage,
           "{} already exists; choose another --output or give --overwrite to replace it",
           path.string());
    }
  }
}

void make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!std::filesystem::is_directory(directory)) {
    fail(ExitCode::kData, "cannot make the directory {}: {}", directory.string(),
         error ? error.message() : "a file is in the way");
  }
}

}  // namespace

OutputDirectory::OutputDirectory(const ImportOptions& options)
    : path_(options.output),
      existing_(options.existing),
      unused_((refuse_existing(options), options.output)),
      log_(Log::Output::kPrint) {
  make_directory(path_);
  lock_.emplace(path_, LockOptions{.name = "import.lock", .setting = "--output"}, log_);
  // Another import may have ended meanwhile.
  refuse_existing(options);
  remove(ImportedFile::kPending);
}

void OutputDirectory::remove_pieces(
    const std::function<bool(const std::string& name)>& which) const {
  remove(ImportedFile::kPiece, which);
}

void OutputDirectory::remove(ImportedFile kind,
                             const std::function<bool(const std::string& name)>& which) const {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (kind_of_file(name) == kind && (!which || which(name))) {
      files.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& file : files) {
    std::filesystem::remove(file);
  }
  sync();
}

void OutputDirectory::prepare() const {
  lock_->require_held();
  if (existing_ == Existing::kReplace) {
    // Shards without a master are no data set, but a master over other shards is a broken one.
    remove(ImportedFile::kMaster);
    remove(ImportedFile::kShard);
  }
}

void OutputDirectory::sync() const {
  sync_file(path_, ExitCode::kData);
}

void check_space(const ImportOptions& options, std::int64_t needed) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(options.output, error);
  if (!error && space.available < static_cast<std::uintmax_t>(needed)) {
    fail(ExitCode::kData, "the data set takes {} but the disk of {} has only {} left",
         bytes_text(needed), options.output.string(),
         bytes_text(static_cast<std::int64_t>(space.available)));
  }
}

}  // namespace strata::io
