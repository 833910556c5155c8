#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../io/data_files.hpp"
#include "allocations.hpp"
#include "commands/commands.hpp"
#include "commands/run/sweep.hpp"
#include "commands/watching/loss_curve.hpp"
#include "drawing/chart.hpp"

namespace strata::app::run_pages_test {
namespace {

using io::test::read_file;
using io::test::TemporaryDirectory;
using io::test::write_file;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// Values that a diverging run, or a damaged file, may hold.
std::vector<std::vector<double>> hostile_values() {
  constexpr double kMost = std::numeric_limits<double>::max();
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  return {{-1.7e308, 1.7e308},
          {-kMost, kMost, 0.0},
          {kMost},
          {-kMost},
          {1.7e308, 1.6e308},
          {1e17, 1e17 + 16, 1e17 + 32},
          {1.0, std::nextafter(1.0, 2.0)},
          {2e59, 3e59},
          {1.0, 2e59},
          {kLeast},
          {0.0, kLeast},
          {kLeast, kMost},
          {0.0},
          {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 5.0}};
}

TEST(LineChart, OfAnyNumbersIsAPicture) {
  for (const std::vector<double>& values : hostile_values()) {
    for (const auto scale :
         {LineChart::Scale::kRange, LineChart::Scale::kFromZero, LineChart::Scale::kWide}) {
      for (const double first : {1.0, 9.2e18}) {
        SCOPED_TRACE(fmt::format("{} and {} more from {}", values[0], values.size() - 1, first));
        std::vector<double> steps;
        for (std::size_t i = 0; i < values.size(); ++i) {
          steps.push_back(first + static_cast<double>(i));
        }
        const std::string svg =
            svg_of(LineChart{.title = "t",
                             .scale = scale,
                             .curves = {{.name = "a",
                                         .colour = 0,
                                         .x = std::span<const double>(steps),
                                         .y = std::span<const double>(values)}}},
                   SvgPlace::kPage);
        EXPECT_THAT(svg, Not(HasSubstr("nan")));
        EXPECT_THAT(svg, Not(HasSubstr("inf")));
        EXPECT_LE(count_of(svg, "class=\"grid\""), 30U);
        EXPECT_GE(count_of(svg, "<circle"), 1U);
        EXPECT_LT(svg.size(), 10000U);
      }
    }
  }
}

TEST(LineChart, NamesItsTicksByTheirSize) {
  const auto labels = [](std::vector<double> values) {
    const std::vector<double> steps{1.0, 2.0};
    return svg_of(LineChart{.title = "t",
                            .scale = LineChart::Scale::kRange,
                            .curves = {{.name = "a",
                                        .colour = 0,
                                        .x = std::span<const double>(steps),
                                        .y = std::span<const double>(values)}}},
                  SvgPlace::kPage);
  };
  EXPECT_THAT(labels({0.0, 5e9}), HasSubstr(">4G<"));
  EXPECT_THAT(labels({0.0, 5e59}), HasSubstr(">4e+59<"));
  EXPECT_THAT(labels({0.0, 5e-20}), HasSubstr(">4e-20<"));
  EXPECT_THAT(labels({-1.0, 1.0}), HasSubstr(">0<"));
}

TEST(LineChart, ShowsTheMeanOfNoisyCurves) {
  constexpr int kPoints = 300;
  std::vector<double> steps;
  std::vector<double> noisy;
  std::vector<double> smooth;
  for (int i = 0; i < kPoints; ++i) {
    steps.push_back(i);
    smooth.push_back(i);
    noisy.push_back(i % 2 == 0 ? i + 20.0 : i - 20.0);
  }
  const auto picture = [&](const std::vector<double>& values, std::size_t count) {
    return svg_of(LineChart{.title = "t",
                            .scale = LineChart::Scale::kRange,
                            .curves = {{.name = "a",
                                        .colour = 0,
                                        .x = std::span(steps).first(count),
                                        .y = std::span(values).first(count)}}},
                  SvgPlace::kPage);
  };
  EXPECT_THAT(picture(smooth, kPoints), Not(HasSubstr("data-mean")));
  EXPECT_THAT(picture(noisy, 50), Not(HasSubstr("data-mean")));
  const std::string svg = picture(noisy, kPoints);
  EXPECT_THAT(svg, HasSubstr("stroke-opacity"));
  // The mean of 19 pixel columns, 15 of the values, leaves the line by 20 / 15 at most.
  const std::size_t end = svg.find("data-mean");
  std::string path = svg.substr(0, end);
  path = path.substr(path.rfind("d=\"M") + 4);
  const std::size_t most = count_of(path, ",");
  ASSERT_GT(most, 250U);
  std::ranges::replace_if(
      path, [](char c) { return c == 'L' || c == ','; }, ' ');
  std::istringstream numbers(path);
  // From the first to the last point, at 374 and 190 pixels for 299 and 339 units.
  for (std::size_t i = 0; i < most; ++i) {
    double x = 0.0;
    double y = 0.0;
    ASSERT_TRUE(numbers >> x >> y);
    const double step = (x - 54.0) / 374.0 * 299.0;
    const double value = (34.0 + 190.0 - y) / 190.0 * 337.0 - 19.0;
    if (step > 15.0 && step < 284.0) {
      EXPECT_NEAR(value, step, 3.0) << step;
    }
  }
}

TEST(LineChart, ItsMeanWeighsPointsByTheirSteps) {
  // Of each ten steps five are 0, a point each, and five are 8, in one point.
  std::vector<double> steps;
  std::vector<double> values;
  for (int ten = 0; ten < 3740; ten += 10) {
    for (int step = 1; step <= 5; ++step) {
      steps.push_back(ten + step);
      values.push_back(0.0);
    }
    steps.push_back(ten + 10);
    values.push_back(8.0);
  }
  const std::string svg =
      svg_of(LineChart{.title = "t",
                       .scale = LineChart::Scale::kRange,
                       .curves = {{.name = "a", .colour = 0, .x = steps, .y = values}}},
             SvgPlace::kPage);
  const auto heights_before = [&](const std::string& mark) {
    std::string path = svg.substr(0, svg.find(mark));
    path = path.substr(path.rfind("d=\"M") + 4);
    std::ranges::replace_if(
        path, [](char c) { return c == 'L' || c == ','; }, ' ');
    std::istringstream numbers(path);
    std::vector<double> heights;
    for (double x = 0.0, y = 0.0; numbers >> x >> y;) {
      heights.push_back(y);
    }
    return heights;
  };
  const std::vector<double> raw = heights_before("data-run");
  const std::vector<double> means = heights_before("data-mean");
  ASSERT_GT(means.size(), 300U);
  const double middle = (std::ranges::min(raw) + std::ranges::max(raw)) / 2.0;
  for (std::size_t i = 20; i + 20 < means.size(); ++i) {
    EXPECT_NEAR(means[i], middle, 6.0);  // a window of 19 columns, 190 pixels for 8
  }
}

class RunPages : public testing::Test {
 protected:
  void SetUp() override { write_file(directory_ / "config.ini", ""); }

  void write_metrics(const std::string& text) const {
    write_file(directory_ / "metrics.jsonl", text);
  }
  /// What a command prints.
  static std::string output_of(const std::vector<std::string>& arguments) {
    const config::Command& command = command_of(arguments);
    testing::internal::CaptureStdout();
    EXPECT_EQ(command.alone(config::CommandLine(command, arguments_of(command, arguments))),
              ExitCode::kDone);
    std::fflush(stdout);
    return testing::internal::GetCapturedStdout();
  }

  TemporaryDirectory directory_;
  std::string run_ = directory_.path().string();
};

TEST_F(RunPages, ShowAnyNumbers) {
  for (const std::vector<double>& values : hostile_values()) {
    SCOPED_TRACE(fmt::format("{} and {} more", values[0], values.size() - 1));
    std::string lines;
    for (std::size_t i = 0; i < 16; ++i) {
      const double value = values[i % values.size()];
      const std::string text = std::isfinite(value) ? fmt::format("{}", value) : "null";
      lines += fmt::format(
          R"({{"kind":"train","step":{0},"loss":{1},"step_seconds":{1},"compute_seconds":{1},)"
          R"("samples_per_second":{1}}})"
          "\n"
          R"({{"kind":"evaluate","step":{0},"loss":{1},"accuracy":{1},"perplexity":{1}}})"
          "\n",
          i + 1, text);
    }
    write_metrics(lines);
    const std::string seen = output_of({"watch", run_, "--once"});
    EXPECT_THAT(seen, HasSubstr("step 16"));
    EXPECT_LE(seen.size(), 24U * 4U * 80U);
    output_of({"report", run_, "--output=" + (directory_ / "page.html").string()});
    const std::string page = read_file(directory_ / "page.html");
    EXPECT_LT(page.size(), 100'000U);
    EXPECT_THAT(page, Not(HasSubstr("=\"nan")));
    EXPECT_THAT(page, Not(HasSubstr("=\"inf")));
  }
}

TEST_F(RunPages, WeighLinesByTheirSteps) {
  // Steps 1 to 4 took 1 second each; 5 to 10, in one line, took 0.1; 3 + 0.6 s are computation.
  std::string lines;
  for (int i = 1; i <= 4; ++i) {
    lines += fmt::format(
        R"({{"kind":"train","step":{},"loss":{},"step_seconds":1.0,"compute_seconds":0.75,"samples_per_second":8}})"
        "\n",
        i, 5 - i);
  }
  lines +=
      R"({"kind":"train","step":10,"loss":0.5,"step_seconds":0.1,"compute_seconds":0.1,"samples_per_second":80,"steps":6})"
      "\n";
  write_metrics(lines);
  const std::string seen = output_of({"watch", run_, "--once"});
  EXPECT_THAT(seen, HasSubstr("step 10"));
  EXPECT_THAT(seen, HasSubstr("460 ms/step"));
  EXPECT_THAT(seen, HasSubstr("17 samples/s"));
  EXPECT_THAT(seen, HasSubstr("compute 78.3 %"));
  output_of({"report", run_, "--output=" + (directory_ / "page.html").string()});
  EXPECT_THAT(read_file(directory_ / "page.html"), HasSubstr("460 ms"));
  EXPECT_EQ(result_of(directory_.path(), config::Best::kLoss).seconds, 4.6);
  // The greatest value fills the first tenth of the curve and not the first fifth.
  EXPECT_EQ(loss_curve(std::vector<double>{1, 2, 3, 4, 10}, std::vector<double>{4, 3, 2, 1, 1}, 10,
                       4, Characters::kAscii)
                .back()
                .substr(kLossLabel),
            "   *******");
}

TEST_F(RunPages, TakeSoManyKeys) {
  constexpr int kLines = 20'000;
  std::string lines;
  for (int i = 1; i <= kLines; ++i) {
    lines += fmt::format(R"({{"kind":"train","step":{},"loss":1,"k{}":1}})"
                         "\n",
                         i, i);
  }
  std::string many = R"({"kind":"train","step":1)";
  for (int i = 0; i < 1000; ++i) {
    many += fmt::format(R"(,"m{}":1)", i);
  }
  write_metrics(lines + many + "}\n");
  const std::int64_t before = strata::test::own_allocations().bytes;
  EXPECT_THAT(output_of({"watch", run_, "--once"}), HasSubstr("step 20000"));
  const std::string table = output_of({"metrics", "export", run_, "--kind=train"});
  // Columns double as they grow; all keys would take 3 GB.
  EXPECT_LT(strata::test::own_allocations().bytes - before, 700 << 20);
  EXPECT_EQ(count_of(table.substr(0, table.find('\n')), ","), 127U);
  EXPECT_EQ(count_of(table, "\n"), kLines + 1U);
}

TEST_F(RunPages, ExportPrintableKeys) {
  write_metrics(R"({"kind":"train","step":1,"\u001b[31m":2,"a,b":3,"c\"d":4})"
                "\n");
  EXPECT_EQ(output_of({"metrics", "export", run_}), "step,\"a,b\",\\x1b[31m,\"c\"\"d\"\n1,3,2,4\n");
}

TEST_F(RunPages, CompareManySettings) {
  std::string config = "[a]\n";
  constexpr int kSettings = 100'000;
  for (int i = 0; i < kSettings; ++i) {
    config += fmt::format("k{} = 1 # default\n", i);
  }
  const TemporaryDirectory other;
  write_file(directory_ / "config.ini", config);
  write_file(other / "config.ini", config + "last = 2\n");
  output_of(
      {"report", run_, other.path().string(), "--output=" + (directory_ / "page.html").string()});
  const std::string page = read_file(directory_ / "page.html");
  EXPECT_THAT(page, HasSubstr("<th>a.last</th><td></td><td>2</td>"));
  // On narrow screens words stay whole, and a table that goes on is shaded there.
  EXPECT_THAT(page,
              HasSubstr("th, td { text-align: left; vertical-align: top; padding: 4px 14px 4px "
                        "0; border-bottom: 1px solid var(--line);\noverflow-wrap: break-word"));
  EXPECT_THAT(page, HasSubstr("<div class=\"scroll\"><table>"));
  EXPECT_THAT(page, HasSubstr("100% no-repeat scroll"));
}

}  // namespace
}  // namespace strata::app::run_pages_test
