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

std::string value_of(std::string_view line, const LinePlace& place, std::size_t /*thread*/) {
  const nlohmann::json object = object_of_line(line, place);
  if (object.contains("bad")) {
    fail(ExitCode::kData, "{} is bad", place.text());
  }
  return object.at("a").dump();
}

/// What comes of the files, "!" for an error, with the number of the file of each result.
std::vector<std::string> read(const std::vector<std::filesystem::path>& files, std::int64_t threads,
                              std::size_t batch_bytes) {
  std::vector<InputPart> parts;
  for (std::size_t file = 0; file < files.size(); ++file) {
    parts.push_back({.file = file});
  }
  ParallelLines<std::string> lines(files, parts, threads, value_of, batch_bytes);
  std::vector<std::string> results;
  try {
    while (lines.next()) {
      const auto file = std::ranges::find(files, lines.place().file);
      results.push_back(fmt::format("{}:{}", file - files.begin(), lines.result()));
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

// Cut at any byte, a file gives the same lines in the same places, with Windows' line ends, blank
// lines and a byte order mark.
TEST(ParallelLines, PartsOfAFileAreItsLines) {
  const TemporaryDirectory directory;
  const std::vector<std::filesystem::path> files{directory / "a.jsonl"};
  const std::string text = "\xEF\xBB\xBF{\"a\": 1}\n\n{\"a\": 22}\r\n  \n{\"a\": 3}\n{\"a\": 4}";
  write_file(files[0], text);
  const std::vector<std::string> expected{"1 a.jsonl:1", "22 a.jsonl:3", "3 a.jsonl:5",
                                          "4 a.jsonl:6"};
  const auto bytes = std::ssize(text);
  for (std::int64_t first = 0; first <= bytes; ++first) {
    for (std::int64_t second = first; second <= bytes; ++second) {
      std::vector<std::string> found;
      const std::vector<InputPart> parts{{0, 0, first}, {0, first, second}, {0, second}};
      ParallelLines<std::string> lines(files, parts, 1, value_of);
      while (lines.next()) {
        const std::filesystem::path place = lines.place().text();
        found.push_back(fmt::format("{} {}", lines.result(), place.filename().string()));
      }
      ASSERT_EQ(found, expected) << first << " " << second;
    }
  }
}

TEST(InputPieces, DependOnTheFilesAlone) {
  const TemporaryDirectory directory;
  std::vector<std::filesystem::path> files;
  for (const std::size_t bytes : {3'500'000U, 10U, 20U, 5U, 2'000'000U}) {
    files.push_back(directory / fmt::format("{}.jsonl", files.size()));
    write_file(files.back(), std::string(bytes, 'x'));
  }
  files.push_back(directory / "packed");
  write_gzip(files.back(), std::string(3'000'000, 'x'));
  const auto shown = [&](CutFiles cut) {
    std::string text;
    for (const InputPiece& piece : pieces_of(files, 3, cut)) {
      for (const InputPart& part : piece.parts) {
        text += fmt::format("{}{}@{}", text.ends_with(' ') || text.empty() ? "" : "+", part.file,
                            part.begin);
      }
      text += piece.is_test ? "t " : " ";
    }
    return text;
  };
  EXPECT_EQ(shown(CutFiles::kBetweenLines), "0@0 0@1166666 0@2333332 1@0+2@0 3@0t 4@0t 5@0t ");
  EXPECT_EQ(shown(CutFiles::kNo), "0@0 1@0+2@0 3@0t 4@0t 5@0t ");
  files.push_back(directory / "none");
  EXPECT_THAT(error_of([&] { (void)pieces_of(files, 3, CutFiles::kNo); }, ExitCode::kData),
              testing::HasSubstr("none does not exist"));
}

}  // namespace
}  // namespace strata::io::parallel_lines_test
