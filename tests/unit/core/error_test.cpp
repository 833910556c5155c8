#include "strata/core/error.hpp"

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace strata {
namespace {

using namespace std::string_literals;

TEST(FailureOf, GivesExitCodeAndMessage) {
  const auto expect = [](const std::exception& error, ExitCode code, const char* message) {
    const Failure failure = failure_of(error);
    EXPECT_EQ(failure.code, code) << message;
    EXPECT_EQ(failure.message, message);
  };
  const auto found = [](int number) {
    return std::filesystem::filesystem_error("exists", "runs/a",
                                             std::error_code(number, std::generic_category()));
  };
  expect(Error(ExitCode::kUsage, "a"), ExitCode::kUsage, "a");
  expect(FileSystemError(ExitCode::kData, EACCES, "a"), ExitCode::kData, "a");
  expect(FileSystemError(ExitCode::kCheckpoint, ENOSPC, "a"), ExitCode::kCheckpoint, "a");
  expect(FileSystemError(ExitCode::kData, ESTALE, "a"), ExitCode::kPeer,
         "a. Start again once the file system answers");
  expect(found(EACCES), ExitCode::kData, "runs/a: Permission denied");
  expect(found(EIO), ExitCode::kPeer,
         "runs/a: Input/output error. Start again once the file system answers");
  const std::string hostile = "1\0\x1b[2J caf\xe9\nb"s;
  expect(Error(ExitCode::kData, hostile), ExitCode::kData, "1\\x00\\x1b[2J caf\\xe9\nb");
  expect(std::runtime_error("a"), ExitCode::kPeer, "unexpected failure: a");
}

}  // namespace
}  // namespace strata
