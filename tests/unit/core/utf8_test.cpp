#include "strata/core/utf8.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "strata/core/log.hpp"
#include "strata/core/text.hpp"

#include "error_of.hpp"

namespace strata::utf8_test {
namespace {

using namespace std::string_literals;

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Printable, EscapesControlsAndInvalidUtf8) {
  struct Case {
    std::string text;
    std::string one_line;
    std::string lines;
  };
  const std::vector<Case> cases{
      {"plain, \"quoted\" \\n 猫 é", "plain, \"quoted\" \\n 猫 é", "plain, \"quoted\" \\n 猫 é"},
      {"a\nb\tc\r", "a\\nb\\x09c\\x0d", "a\nb\tc\\x0d"},
      {"\x1b[2J\x1b]0;title\a", "\\x1b[2J\\x1b]0;title\\x07", "\\x1b[2J\\x1b]0;title\\x07"},
      {"\x7f\xc2\x9b"
       "31m",
       "\\x7f\\xc2\\x9b31m", "\\x7f\\xc2\\x9b31m"},
      {std::string("\0nul", 4), "\\x00nul", "\\x00nul"},
      {"\xe2\x80\xae reversed", "\\xe2\\x80\\xae reversed", "\\xe2\\x80\\xae reversed"},
      {"\xff\xc3\xed\xa0\x80", "\\xff\\xc3\\xed\\xa0\\x80", "\\xff\\xc3\\xed\\xa0\\x80"},
      {"cut \xf0\x9f\x98", "cut \\xf0\\x9f\\x98", "cut \\xf0\\x9f\\x98"},
      {"", "", ""}};
  for (const Case& one : cases) {
    EXPECT_EQ(printable(one.text), one.one_line);
    EXPECT_EQ(printable_lines(one.text), one.lines);
  }
}

TEST(NameProblem, IsWhatFilesCannotHold) {
  EXPECT_EQ(name_problem("猫 é\n"), "");
  EXPECT_EQ(name_problem("caf\xe9"), "is not UTF-8 text");
  EXPECT_EQ(name_problem("cat\0\0"s), "holds a NUL byte");
}

TEST(Printable, LeavesOutTheMiddleOfLongTexts) {
  EXPECT_EQ(printable(std::string(200, 'x')), std::string(200, 'x'));
  EXPECT_EQ(printable("abcdefghij", 6), "abcd... (4 bytes) ...ij");
  // Characters of two and four bytes stay whole, wherever the cuts fall.
  for (std::size_t most = 1; most < 40; ++most) {
    std::string text;
    for (int i = 0; i < 10; ++i) {
      text += "é😀";
    }
    EXPECT_THAT(printable(text, most), Not(HasSubstr("\\x"))) << most;
  }
  const std::string hundred_mb(100 << 20, 'x');
  EXPECT_LT(printable_lines("a.csv:2: '" + hundred_mb + "' is not a number\nsecond").size(), 1100U);
  EXPECT_THAT(printable_lines("a.csv:2: '" + hundred_mb + "' is not a number"),
              HasSubstr("x' is not a number"));
  EXPECT_LT(printable_lines(std::string(1 << 20, '\n')).size(), 11000U);
}

TEST(Printable, CellsOfTablesAre) {
  EXPECT_EQ(table_text({{"class"}, {"\x1b[31mred\nblue"}}),
            "class\n-----------------\n\\x1b[31mred\\nblue\n");
}

class LogFile : public testing::Test {
 protected:
  LogFile() {
    std::string path = (fs::temp_directory_path() / "strata-log-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  ~LogFile() override { fs::remove_all(directory_); }

  [[nodiscard]] std::string text() const {
    std::ifstream file(directory_ / "log.txt");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path directory_;
};

TEST_F(LogFile, HoldsPrintableLines) {
  {
    Log log(Log::Output::kPrint);
    log.info("class {}", "\x1b[31mred");
    log.open_file((directory_ / "log.txt").string());
    log.warn("{}", std::string(1 << 20, 'x'));
  }
  EXPECT_THAT(text(), HasSubstr(" class \\x1b[31mred\n"));
  EXPECT_THAT(text(), HasSubstr("warning: xxx"));
  EXPECT_LT(text().size(), 1200U);
}

TEST(Log, PassesEachWarning) {
  Log log(Log::Output::kPrint);
  std::vector<std::string> warnings;
  log.warn("early");
  log.on_warning([&](const std::string& text) { warnings.push_back(text); });
  log.info("no warning: none\nwarning: within");
  log.warn("late");
  log.on_warning({});
  log.warn("too late");
  EXPECT_THAT(warnings, ::testing::ElementsAre("early", "within", "late"));
}

TEST_F(LogFile, IsNeverALinkOrASpecialFile) {
  const fs::path path = directory_ / "log.txt";
  const auto error = [&] {
    return test::error_of([&] { Log(Log::Output::kPrint).open_file(path.string()); },
                          ExitCode::kUsage);
  };
  fs::create_symlink(directory_ / "precious", path);
  EXPECT_THAT(error(), HasSubstr("log.txt: it is a link or a special file"));
  EXPECT_FALSE(fs::exists(directory_ / "precious"));
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(error(), HasSubstr("log.txt: it is a link or a special file"));
  fs::remove(path);
  EXPECT_THAT(
      test::error_of(
          [&] { Log(Log::Output::kPrint).open_file((directory_ / "none/log.txt").string()); },
          ExitCode::kUsage),
      HasSubstr("No such file"));
}

}  // namespace
}  // namespace strata::utf8_test
