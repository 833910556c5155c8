#include "files/binary_file.hpp"

#include <utility>

#include <unistd.h>

namespace strata::io {

BinaryFile::BinaryFile(std::filesystem::path path)
    : path_(std::move(path)), file_(path_, ExitCode::kData) {}

void BinaryFile::read(std::span<std::byte> bytes) {
  std::string reason = "was it changed meanwhile?";
  std::size_t count = 0;
  try {
    count = file_.read(bytes);
  } catch (const BadInput& problem) {
    reason = fmt::format("it {}", problem.what());
  }
  if (count != bytes.size()) {
    fail(ExitCode::kData, "cannot read {} to its end of {} bytes; {}", path_.string(), size(),
         reason);
  }
}

void BinaryFile::skip(std::int64_t bytes) {
  ::lseek(file_.descriptor.get(), bytes, SEEK_CUR);
}

}  // namespace strata::io
