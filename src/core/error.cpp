#include "strata/core/error.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>

#include <fmt/format.h>
#include <sys/resource.h>

#include "strata/core/memory.hpp"
#include "strata/core/text.hpp"
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

namespace {

/// Why the system starts no thread, and what to do.
std::string no_thread_text(const char* reason) {
  const auto limit_of = [](auto resource) {
    rlimit limit{};
    return ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY
               ? std::optional(static_cast<std::int64_t>(limit.rlim_cur))
               : std::nullopt;
  };
  const auto processes = limit_of(RLIMIT_NPROC);
  const auto stack = limit_of(RLIMIT_STACK);
  return fmt::format(
      "cannot start a thread{}: {}; {}. Processes and threads of the user: at most {} (ulimit -u)",
      stack ? fmt::format(" with a stack of {}", bytes_text(*stack)) : "", reason, memory_advice(),
      processes ? count_text(*processes) : "unlimited");
}

}  // namespace

Failure failure_of(const std::exception& error) {
  const auto* const of_file = dynamic_cast<const FileSystemError*>(&error);
  if (of_file != nullptr && of_file->is_passing()) {
    return {ExitCode::kPeer,
            fmt::format("{}. Start again once the file system answers", of_file->what())};
  }
  if (of_file != nullptr && is_exhaustion(error)) {
    return {ExitCode::kPeer,
            fmt::format("out of memory: {}; {}", of_file->what(), memory_advice())};
  }
  if (const auto* const failed = dynamic_cast<const OutOfMemory*>(&error)) {
    return {ExitCode::kPeer, fmt::format("out of memory: {}; {}", failed->what(), memory_advice())};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    const std::int64_t bytes = refused_bytes();
    return {ExitCode::kPeer,
            fmt::format("out of memory: {} could not be allocated; {}",
                        bytes > 0 ? bytes_text(bytes) : "an unknown size", memory_advice())};
  }
  if (const auto* const known = dynamic_cast<const Error*>(&error)) {
    return {known->code(), known->what()};
  }
  if (const auto* const failed = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const std::string text =
        fmt::format("{}: {}", failed->path1().string(), failed->code().message());
    return failure_of(FileSystemError(ExitCode::kData, failed->code().value(), text));
  }
  if (const auto* const failed = dynamic_cast<const std::system_error*>(&error);
      failed != nullptr && is_exhaustion(error)) {
    return {ExitCode::kPeer, no_thread_text(failed->code().message().c_str())};
  }
  return {ExitCode::kPeer, fmt::format("unexpected failure: {}", error.what())};
}

bool is_exhaustion(const std::exception& error) {
  const auto* const of_file = dynamic_cast<const FileSystemError*>(&error);
  const auto* const failed = dynamic_cast<const std::system_error*>(&error);
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         (of_file != nullptr && of_file->number() == ENOMEM) ||
         (failed != nullptr && (failed->code() == std::errc::resource_unavailable_try_again ||
                                failed->code() == std::errc::not_enough_memory));
}

void vfail(ExitCode code, fmt::string_view format, fmt::format_args args) {
  throw Error(code, fmt::vformat(format, args));
}

void vfail_precondition(fmt::string_view format, fmt::format_args args) {
  throw std::logic_error(visible(fmt::vformat(format, args)));
}

}  // namespace strata
