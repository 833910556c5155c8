#include "strata/core/error.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

#include "strata/core/utf8.hpp"

namespace strata {

// what() ends at a NUL.
Error::Error(ExitCode code, std::string_view message)
    : std::runtime_error(visible(message)), code_(code) {}

bool FileSystemError::is_passing() const noexcept {
  static constexpr std::array<int, 9> kPassing{
      EIO, ESTALE, ETIMEDOUT, ENOTCONN, ESHUTDOWN, EHOSTDOWN, EHOSTUNREACH, EREMOTEIO, ENODEV};
  return std::ranges::find(kPassing, number_) != kPassing.end();
}

Failure failure_of(const std::exception& error) {
  if (const auto* const failed = dynamic_cast<const FileSystemError*>(&error);
      failed != nullptr && failed->is_passing()) {
    return {ExitCode::kPeer,
            fmt::format("{}. Start again once the file system answers", failed->what())};
  }
  if (const auto* const known = dynamic_cast<const Error*>(&error)) {
    return {known->code(), known->what()};
  }
  if (const auto* const failed = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const std::string text =
        fmt::format("{}: {}", failed->path1().string(), failed->code().message());
    return failure_of(FileSystemError(ExitCode::kData, failed->code().value(), text));
  }
  return {ExitCode::kPeer, fmt::format("unexpected failure: {}", error.what())};
}

void vfail(ExitCode code, fmt::string_view format, fmt::format_args args) {
  throw Error(code, fmt::vformat(format, args));
}

void vfail_precondition(fmt::string_view format, fmt::format_args args) {
  throw std::logic_error(visible(fmt::vformat(format, args)));
}

}  // namespace strata
