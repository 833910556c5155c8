#include "strata/device/shared_library.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/error.hpp"

namespace strata::device::shared_library_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// What find() says of a function that is not there.
std::string text_without(const SharedLibrary& library, const char* name) {
  try {
    static_cast<void>(library.find(name));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kPeer);
    return error.what();
  }
  return "";
}

TEST(SharedLibrary, FindsItsFunctions) {
  const SharedLibrary library("libm.so.6");
  ASSERT_TRUE(library.loaded());
  double (*const root)(double) = library.find("sqrt");
  EXPECT_EQ(root(9.0), 3.0);
  EXPECT_TRUE(library.load_beside("libc.so.6"));
  EXPECT_FALSE(library.load_beside("libno-such-library.so.1"));
}

TEST(SharedLibrary, SaysWhatIsMissingAndWhatToDo) {
  EXPECT_THAT(
      text_without(SharedLibrary("libm.so.6"), "no_such_function"),
      AllOf(HasSubstr("libm.so.6"), HasSubstr("no_such_function"), HasSubstr("LD_LIBRARY_PATH")));
  const SharedLibrary absent("libno-such-library.so.1", "do without");
  EXPECT_FALSE(absent.loaded());
  EXPECT_THAT(text_without(absent, "sqrt"),
              AllOf(HasSubstr("libno-such-library.so.1 was not found"), HasSubstr("do without")));
}

}  // namespace
}  // namespace strata::device::shared_library_test
