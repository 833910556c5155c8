#include "import/parallel_lines.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "strata/core/error.hpp"

#include "data_files.hpp"

namespace strata::io::parallel_lines_test {
namespace {

using namespace test;

/// What comes of the files, "!" for an error, with the number of the file of each result.
std::vector<std::string> read(const std::vector<std::filesystem::path>& files, std::int64_t threads,
                              std::size_t batch_bytes) {
  const auto make = [](const nlohmann::json& object, const std::string& place, std::size_t) {
    if (object.contains("bad")) {
      fail(ExitCode::kData, "{} is bad", place);
    }
    return object.at("a").dump();
  };
  ParallelLines<std::string> lines(files, threads, make, batch_bytes);
  std::vector<std::string> results;
  try {
    while (lines.next()) {
      results.push_back(fmt::format("{}:{}", lines.file(), lines.result()));
    }
  } catch (const Error& error) {
    results.push_back(fmt::format("!{}", error.what()));
  }
  return results;
}

TEST(ParallelLines, KeepTheirOrderInEveryBatchAndNumberOfThreads) {
  const TemporaryDirectory directory;
  std::vector<std::filesystem::path> files;
  std::vector<std::string> expected;
  for (int file = 0; file < 4; ++file) {
    std::string text = file == 2 ? "\n\n" : "";
    for (int line = 0; file != 1 && line < 40; ++line) {
      text += fmt::format("{{\"a\": {}}}{}", 100 * file + line, line == 39 ? "" : "\n");
      expected.push_back(fmt::format("{}:{}", file, 100 * file + line));
    }
    files.push_back(directory / fmt::format("{}.jsonl", file));
    write_file(files.back(), text);
  }
  for (const std::int64_t threads : {1, 2, 7}) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
      EXPECT_EQ(read(files, threads, bytes), expected) << threads << " " << bytes;
    }
  }
}

TEST(ParallelLines, GiveTheFirstErrorAfterWhatIsBeforeIt) {
  const TemporaryDirectory directory;
  const std::filesystem::path first = directory / "first.jsonl";
  write_file(first, "{\"a\": 1}\n{\"a\": 2}\n");
  for (const std::string line : {"{\"bad\": 1}", "nonsense", "[1]"}) {
    const std::filesystem::path second = directory / "second.jsonl";
    write_file(second, "{\"a\": 3}\n" + line + "\n{\"bad\": 2}\nx\n{\"a\": 4}\n");
    for (const std::int64_t threads : {1, 5}) {
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20}) {
        const std::vector<std::string> results = read({first, second}, threads, bytes);
        ASSERT_EQ(results.size(), 4U);
        EXPECT_EQ(results[2], "1:3");
        EXPECT_THAT(results[3], testing::StartsWith("!" + second.string() + ":2"));
      }
    }
  }
  const std::filesystem::path gone = directory / "gone.jsonl";
  for (const std::int64_t threads : {1, 5}) {
    const std::vector<std::string> results = read({first, gone}, threads, 1U << 20U);
    ASSERT_EQ(results.size(), 3U);
    EXPECT_THAT(results[2], testing::HasSubstr("gone.jsonl"));
  }
}

}  // namespace
}  // namespace strata::io::parallel_lines_test
