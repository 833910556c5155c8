#include "import/pending_file.hpp"

#include <cerrno>
#include <cstring>
#include <regex>

#include <fcntl.h>
#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/io/directory_lock.hpp"

#include "files/posix_file.hpp"

namespace strata::io {

PendingFile::PendingFile(std::filesystem::path final_path) : final_(std::move(final_path)) {
  temporary_ = fmt::format("{}.{}.partial", final_.string(), make_nonce());
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

ImportedFile kind_of_file(const std::string& name) {
  static const std::regex kMasterName(R"((train|test)\.h5)");
  static const std::regex kShardName(R"((train|test)(\.manifest|-[0-9]+\.h5))");
  // Earlier versions gave temporary names without a nonce.
  static const std::regex kPendingName(
      R"((tokens(-[0-9a-f]{16}\.piece)?|stdin|(train|test)(\.h5|\.manifest|-[0-9]+\.h5))(\.[^.]{16})?\.partial)");
  static const std::regex kPieceName(R"(tokens-[0-9a-f]{16}\.piece)");
  return std::regex_match(name, kMasterName)    ? ImportedFile::kMaster
         : std::regex_match(name, kShardName)   ? ImportedFile::kShard
         : std::regex_match(name, kPendingName) ? ImportedFile::kPending
         : std::regex_match(name, kPieceName)   ? ImportedFile::kPiece
                                                : ImportedFile::kNone;
}

}  // namespace strata::io
