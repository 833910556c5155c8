#include "strata/core/error.hpp"

#include <cerrno>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "strata/core/memory.hpp"

namespace strata::error_test {
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

TEST(FailureOf, SaysWhatTheSystemHasTooLittleOf) {
  const auto expect = [](const std::exception& error, const std::string& begin) {
    const Failure failure = failure_of(error);
    EXPECT_EQ(failure.code, ExitCode::kPeer);
    EXPECT_THAT(failure.message,
                testing::AllOf(testing::StartsWith(begin), testing::HasSubstr("the process has "),
                               testing::HasSubstr("; raise the limit"),
                               testing::Not(testing::HasSubstr("\n"))));
  };
  const auto code = [](std::errc number) { return std::make_error_code(number); };
  expect(FileSystemError(ExitCode::kCheckpoint, ENOMEM, "cannot map a"),
         "out of memory: cannot map a; ");
  expect(OutOfMemory("cannot open a"), "out of memory: cannot open a; ");
  expect(std::filesystem::filesystem_error("exists", "runs/a", code(std::errc::not_enough_memory)),
         "out of memory: runs/a: Cannot allocate memory; ");
  for (const std::errc number :
       {std::errc::resource_unavailable_try_again, std::errc::not_enough_memory}) {
    expect(std::system_error(code(number)), "cannot start a thread");
  }
  // Sanitizers have operators of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  volatile std::size_t bytes = std::size_t{3} << 50;
  try {
    const std::vector<char> memory(bytes);
    ADD_FAILURE() << memory.size();
  } catch (const std::bad_alloc& error) {
    expect(error, "out of memory: 3072.00 TiB could not be allocated; ");
  }
#endif
}

// Sanitizers need address space.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Memory, IsShortUnderALimit) {
  EXPECT_FALSE(memory_is_short());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit little{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &little), 0);
  const bool is_short = memory_is_short();
  const std::string advice = memory_advice();
  ::setrlimit(RLIMIT_AS, &before);
  EXPECT_TRUE(is_short);
  EXPECT_THAT(advice,
              testing::HasSubstr(" of address space and the limit is 1.00 MiB (ulimit -v); "));
}
#endif

}  // namespace
}  // namespace strata::error_test
