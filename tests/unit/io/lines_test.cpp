#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "strata/io/growing_file.hpp"
#include "strata/io/json.hpp"
#include "strata/io/text_file.hpp"

#include "allocations.hpp"
#include "data_files.hpp"

namespace strata::io::test::lines_test {
namespace {

using Lines = std::vector<std::string>;
using namespace std::string_literals;

constexpr std::size_t kMost = std::size_t{1} << 20;

Lines lines_of(const std::filesystem::path& path) {
  Lines lines;
  read_lines(path, ExitCode::kData, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST(Lines, EndAtLineFeedsAndNuls) {
  const TemporaryDirectory directory;
  const auto path = directory / "lines";
  EXPECT_EQ(lines_of(path), Lines());
  struct Case {
    std::string text;
    Lines lines;
    std::size_t unfinished;  ///< of the last, which a growing file does not give yet
  };
  for (const Case& one : std::vector<Case>{
           {"", {}, 0},
           {"a\nb\n", {"a", "b"}, 0},
           {"a\n\n\nb", {"a", "b"}, 1},
           {"a\0\0\0b\nc\n"s, {"a", "b", "c"}, 0},
           {"a\n\0\0\0\0"s, {"a"}, 0},
           {"a\nb\0\0\0\0"s, {"a", "b"}, 1},
           {"\0\0a\n"s, {"a"}, 0},
           {std::string(kMost, 'a') + "\nb\n", {std::string(kMost, 'a'), "b"}, 0},
           {std::string(kMost + 1, 'a') + "\nb\n", {"b"}, 0},
           {std::string(5 * kMost, 'a') + "\nb\n" + std::string(5 * kMost, 'c'), {"b"}, 0},
           {"a\n" + std::string(3 * kMost, '\0') + "b\nc\n", {"a", "b", "c"}, 0},
           {std::string(kMost - 1, '\n') + "a\0b\nc"s, {"a", "b", "c"}, 1}}) {
    SCOPED_TRACE(one.text.substr(0, 20));
    write_file(path, one.text);
    EXPECT_EQ(lines_of(path), one.lines);
    Lines given;
    int restarts = 0;
    GrowingFile file(path, ExitCode::kData);
    const auto read = [&] {
      file.read([&] { ++restarts; }, [&](std::string_view line) { given.emplace_back(line); });
    };
    read();
    EXPECT_EQ(given, Lines(one.lines.begin(), one.lines.end() - static_cast<long>(one.unfinished)));
    std::ofstream(path, std::ios::app) << "\nlast\n";
    read();
    Lines all = one.lines;
    all.emplace_back("last");
    EXPECT_EQ(given, all);
    EXPECT_EQ(restarts, 0);
  }
}

TEST(Lines, ALongTailTakesLittleMemory) {
  const TemporaryDirectory directory;
  const auto path = directory / "lines";
  for (const char byte : {'\0', 'x'}) {
    std::ofstream(path) << "a\n" << std::string(1 << 16, byte);
    if (byte == '\0') {
      std::filesystem::resize_file(path, 256 << 20);
    } else {
      std::ofstream(path, std::ios::app) << std::string(64 << 20, byte);
    }
    for (const auto& read : std::vector<std::function<void(int&)>>{
             [&](int& count) {
               read_lines(path, ExitCode::kData, [&](std::string_view) { ++count; });
             },
             [&](int& count) {
               GrowingFile(path, ExitCode::kData).read([] {}, [&](std::string_view) { ++count; });
             }}) {
      int count = 0;
      const std::int64_t before = strata::test::own_allocations().bytes;
      read(count);
      EXPECT_LT(strata::test::own_allocations().bytes - before, 8 << 20);
      EXPECT_EQ(count, 1);
    }
  }
}

TEST(Json, HasALimitOfDepthAndNoneOfSize) {
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(parse_json(std::string(65, '[') + std::string(65, ']')));
  EXPECT_FALSE(parse_json("[1e999]"));
  EXPECT_EQ(parse_json(R"({"a":1,"a":2})")->at("a"), 2);
  EXPECT_FALSE(parse_json(R"([{"a":1,"b":{"a":2,"a":3}}])", RepeatedKeys::kRefused));
  EXPECT_TRUE(parse_json(R"([{"a":1},{"a":{"a":2}}])", RepeatedKeys::kRefused));
  // A parser that looks at earlier values again would take longer than a test may.
  constexpr int kValues = 1'000'000;
  std::string text = "[{}";
  for (int i = 1; i < kValues; ++i) {
    text += ",{}";
  }
  EXPECT_EQ(parse_json(text + "]", RepeatedKeys::kRefused)->size(), kValues);
}

/// The text that parse_json() finds.
std::optional<std::string> parsed_member(const std::string& text) {
  const std::optional<nlohmann::json> object = parse_json(text);
  if (!object || !object->is_object() || !object->contains("t") || !object->at("t").is_string()) {
    return std::nullopt;
  }
  return object->at("t").get<std::string>();
}

TEST(Json, OneTextIsThatOfTheWhole) {
  const Lines usual{R"({"t":"x"})",
                    R"( { "a" : [ 1 , -2.50 , 0 ] , "t" : "x\n\"\u00e9\ud83d\ude00" } )",
                    R"({"t":"","b":{"t":"no","c":[{},[],null,true,false]}})", R"({"\u0074":"key"})",
                    R"({"t":"first","t":"last, é猫😀, long enough for several words of the scan"})"};
  for (const std::string& text : usual) {
    EXPECT_TRUE(parsed_member(text)) << text;
    EXPECT_EQ(text_member(text, "t"), parsed_member(text)) << text;
  }
  const Lines left{R"({"t":3})",
                   R"({"a":"t"})",
                   R"({"t":"\ud800"})",
                   R"({"t":"\udc00a"})",
                   R"({"t":"x",})",
                   R"({"t":"x"} 1)",
                   R"({"t":"\x"})",
                   R"({"t":"\u12g4"})",
                   R"({"t":"x","n":01})",
                   R"({"t":"x","n":1.})",
                   R"({"t":"x","n":-})",
                   R"({"t":"x","n":1e999})",
                   R"({"t":"x","n":+1})",
                   R"({"t":"x" "n":1})",
                   R"(["t"])",
                   R"({t:"x"})",
                   "{\"t\":\"a\tb\"}",
                   "{\"t\":\"\xC3\"}",
                   R"({"t":"x)",
                   R"({"t":"\ud83d\u0041"})",
                   ""};
  for (const std::string& text : left) {
    EXPECT_FALSE(text_member(text, "t")) << text;
  }
  // What is found after any change is what the parser finds.
  std::mt19937 random(5);
  int found = 0;
  for (int i = 0; i < 40000; ++i) {
    std::string text = usual[random() % usual.size()];
    for (std::size_t change = random() % 3 + 1; change > 0; --change) {
      constexpr std::string_view kBytes = "\"\\{}[]:,0e.-tu \x01\x80\xC3";
      const std::size_t at = random() % text.size();
      random() % 2 == 0 ? text.erase(at, 1) : text.insert(at, 1, kBytes[random() % kBytes.size()]);
    }
    if (const auto member = text_member(text, "t")) {
      ++found;
      ASSERT_EQ(member, parsed_member(text)) << text;
    }
  }
  EXPECT_GT(found, 3000);
}

}  // namespace
}  // namespace strata::io::test::lines_test
