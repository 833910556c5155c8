#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace strata {

/// Exit codes of the executable; each error carries the one that it ends the program with.
enum class ExitCode : int {
  kDone = 0,
  kUsage = 2,         ///< wrong use or configuration
  kData = 3,          ///< bad or missing data
  kCheckpoint = 4,    ///< bad checkpoint
  kPeer = 5,          ///< a peer or device failed, or memory or threads ran out
  kDiverged = 6,      ///< the loss is not finite
  kStoppedEarly = 75  ///< stopped on request, checkpoint written
};

/// A failure that a user can cause or meet. Its text, in the form of visible(), says what is, what
/// was expected and what to do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string_view message);

  [[nodiscard]] ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// A failed system call on a file: the file may be good, it cannot be read or written now.
class FileSystemError : public Error {
 public:
  /// `number` is the call's errno; 0 where it is not known.
  FileSystemError(ExitCode code, int number, const std::string& message)
      : Error(code, message), number_(number) {}

  [[nodiscard]] int number() const noexcept { return number_; }
  /// Whether the file system fails, as with EIO or ESTALE; not so for a wrong path, missing rights
  /// or a full disk.
  [[nodiscard]] bool is_passing() const noexcept;

 private:
  int number_;
};

/// An operation with another rank that did not complete in time. Each rank that waits throws one.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// An exit code and the message that goes with it.
struct Failure {
  ExitCode code = ExitCode::kDone;
  std::string message;
};

/// How an exception ends a process: an Error with its code and text, a failing file system or too
/// little memory with kPeer and what to do, std::filesystem's with kData, others as unexpected.
[[nodiscard]] Failure failure_of(const std::exception& error);

/// Whether memory or threads ran out.
[[nodiscard]] bool is_exhaustion(const std::exception& error);

[[noreturn]] void vfail(ExitCode code, fmt::string_view format, fmt::format_args args);
[[noreturn]] void vfail_precondition(fmt::string_view format, fmt::format_args args);

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  vfail(code, format, fmt::make_format_args(args...));
}

/// Throws std::logic_error where an internal precondition, not a user's, does not hold.
template <typename... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) {
    vfail_precondition(format, fmt::make_format_args(args...));
  }
}

}  // namespace strata
