#include "import/pending_file.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/directory_lock.hpp"

#include "files/posix_file.hpp"

namespace strata::io {
namespace {

constexpr const char* kEnding = ".partial";

}  // namespace

PendingFile::PendingFile(std::filesystem::path final_path) : final_(std::move(final_path)) {
  temporary_ = fmt::format("{}.{}{}", final_.string(), make_nonce(), kEnding);
  const FileDescriptor created(temporary_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!created.is_open()) {
    fail(ExitCode::kData, "cannot create {}: {}; choose another --output", temporary_.string(),
         std::strerror(errno));
  }
}

PendingFile::~PendingFile() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
  }
}

void PendingFile::publish() {
  rename_file(temporary_, final_, ExitCode::kData);
  temporary_.clear();
}

ImportedFile kind_of_file(std::string_view name) {
  if (name.ends_with(kEnding)) {
    name.remove_suffix(std::string_view(kEnding).size());
    // Earlier versions gave temporary names without a nonce.
    const std::size_t dot = name.rfind('.');
    if (dot != std::string_view::npos && name.size() - dot == 17) {
      name = name.substr(0, dot);
    }
    return name == "tokens" || kind_of_file(name) != ImportedFile::kNone ? ImportedFile::kPending
                                                                         : ImportedFile::kNone;
  }
  if (name == "train.h5" || name == "test.h5") {
    return ImportedFile::kMaster;
  }
  if (name == "train.manifest" || name == "test.manifest") {
    return ImportedFile::kShard;
  }
  const std::string_view split = name.substr(0, name.find('-'));
  if ((split == "train" || split == "test") && name.ends_with(".h5") &&
      name.size() > split.size() + 4) {
    name = name.substr(split.size() + 1, name.size() - split.size() - 4);
    if (name.find_first_not_of("0123456789") == std::string_view::npos) {
      return ImportedFile::kShard;
    }
  }
  return ImportedFile::kNone;
}

}  // namespace strata::io
