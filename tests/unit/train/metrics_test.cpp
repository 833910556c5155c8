#include "strata/train/metrics.hpp"

#include <csignal>
#include <filesystem>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "../io/data_files.hpp"
#include "error_of.hpp"

namespace strata::train::metrics_test {
namespace {

using io::test::read_file;
using io::test::TemporaryDirectory;
using io::test::write_file;

/// Lines without the time of day.
std::string untimed(const std::string& lines) {
  return std::regex_replace(lines, std::regex(",\"time\":[0-9.]+"), "");
}

MetricsKept up_to(std::int64_t step) {
  return {.training_step = step, .evaluation_step = step};
}

class MetricsFileTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_ / "metrics.jsonl";
};

TEST_F(MetricsFileTest, KeepsWholeLinesUpToAStep) {
  const std::string first = "{\"kind\":\"train\",\"step\":1}\n";
  const std::string second =
      "{\"kind\":\"evaluate\",\"step\":2}\n{\"kind\":\"train\",\"step\":2}\n";
  const std::string third = "{\"kind\":\"train\",\"step\":3}\n";
  const std::string run = "{\"kind\":\"run\",\"step\":3,\"event\":\"start\"}\n";
  struct Case {
    std::string text;
    std::int64_t step;
    std::string kept;
  };
  for (const Case& one : std::vector<Case>{
           {"", 5, ""},
           {first + second, 5, first + second},
           {first + second + third, 2, first + second},
           {first + second + third.substr(0, third.size() - 2), 5, first + second},
           {first + second + third.substr(0, third.size() - 1), 5, first + second + third},
           {"{\"kind\":3,\"step\":\"x\"}\n" + std::string(100'000, '[') + "\n" + first, 5,
            "{\"kind\":3,\"step\":\"x\"}\n" + first},
           {first + "\n" + second.substr(0, 9) + "\n" + third, 5, first + third},
           {first, 0, ""},
           {first + run + third + run, 0, run + run}}) {
    write_file(path_, one.text);
    MetricsFile metrics(path_, up_to(one.step));
    EXPECT_EQ(read_file(path_), one.kept) << one.text;
    metrics.write(EvaluateRecord{.step = 6, .loss = 0.5, .accuracy = 0.25});
    EXPECT_EQ(untimed(read_file(path_)),
              one.kept + "{\"kind\":\"evaluate\",\"step\":6,\"loss\":0.5,\"accuracy\":0.25}\n");
  }
}

TEST_F(MetricsFileTest, NamesTheStepsWhoseLinesAreMissing) {
  struct Case {
    std::vector<std::int64_t> steps;
    std::int64_t kept;
    std::string missing;
  };
  for (const auto& [steps, kept, missing] :
       std::vector<Case>{{{}, 0, ""},
                         {{}, 1, "1"},
                         {{}, 20, "1 to 20"},
                         {{1, 2, 3}, 3, ""},
                         {{1, 2, 3, 4}, 3, ""},
                         {{1, 2, 7, 8, 10}, 11, "3 to 6, 9, 11"},
                         {{3, 1, 1, 3}, 3, "2"},
                         {{2, 4, 6, 8, 10, 12, 14, 16, 18, 20},
                          20,
                          "1, 3, 5, 7, 9, 11, 13, 15 and 2 "
                          "gaps more"}}) {
    std::string text = "{\"kind\":\"evaluate\",\"step\":2}\n";
    for (const std::int64_t step : steps) {
      text += fmt::format("{{\"kind\":\"train\",\"step\":{}}}\n", step);
    }
    write_file(path_, text);
    EXPECT_EQ(MetricsFile(path_, up_to(kept)).missing_steps(), missing) << text;
  }
  std::filesystem::remove(path_);
  EXPECT_EQ(MetricsFile(path_, up_to(2)).missing_steps(), "1 to 2");
}

TEST_F(MetricsFileTest, AHistoryThatCannotBeReadIsAnError) {
  std::filesystem::create_directory(path_);
  write_file(directory_ / "elsewhere", "{\"step\":1}\n");
  std::filesystem::create_symlink("elsewhere", directory_ / "link");
  struct Case {
    std::filesystem::path path;
    const char* reason;
  };
  // Address 0 of a process is not mapped: reading it is an I/O error.
  for (const Case& one :
       {Case{"/proc/self/mem", "Input/output error"}, Case{path_, "not a regular file"},
        Case{directory_ / "link", "Too many levels of symbolic links"}}) {
    for (const auto& read : std::vector<std::function<void()>>{
             [&] { const MetricsFile metrics(one.path, up_to(1)); },
             [&] { static_cast<void>(last_metrics_step(one.path)); }}) {
      EXPECT_THAT(strata::test::error_of(read, ExitCode::kData), ::testing::HasSubstr(one.reason));
    }
  }
  EXPECT_EQ(read_file(directory_ / "elsewhere"), "{\"step\":1}\n");
}

TEST_F(MetricsFileTest, WhatDidNotFitLeavesNoPart) {
  for (const bool events_full : {false, true}) {
    MetricsFile metrics(path_, up_to(0),
                        EventsWanted{directory_ / "events", std::string(1000, 'c')});
    const std::filesystem::path events =
        std::filesystem::directory_iterator(directory_ / "events")->path();
    metrics.write(EvaluateRecord{.step = 1, .loss = 0.5});
    const std::string first = read_file(path_);
    const std::string first_events = read_file(events);
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit full{.rlim_cur = (events_full ? first_events : first).size() + 10,
                      .rlim_max = before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &full);
    metrics.write(EvaluateRecord{.step = 2, .loss = 0.5});
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_TRUE(metrics.failed());
    EXPECT_EQ(
        untimed(read_file(path_)),
        untimed(first) + (events_full ? "{\"kind\":\"evaluate\",\"step\":2,\"loss\":0.5}\n" : ""));
    EXPECT_EQ(read_file(events), first_events);
    metrics.write(EvaluateRecord{.step = 3, .loss = 0.5});
    EXPECT_TRUE(
        untimed(read_file(path_)).ends_with("{\"kind\":\"evaluate\",\"step\":3,\"loss\":0.5}\n"));
    EXPECT_TRUE(read_file(events).starts_with(first_events));
    EXPECT_GT(read_file(events).size(), first_events.size());
  }
}

TEST_F(MetricsFileTest, WritesNumbersThatReadBackToTheSameBits) {
  MetricsFile metrics(path_, up_to(0));
  const TrainRecord record{.step = 7,
                           .loss = 0.1 + 0.2,
                           .grad_norm = 1.0 / 3.0,
                           .learning_rate = 1e-300,
                           .samples_per_second = 12345.678901234567,
                           .times = {.step = 0.7, .compute = 0.1, .bubble = 0.2, .data = 0.3}};
  metrics.write(record);
  const nlohmann::json line = nlohmann::json::parse(read_file(path_));
  EXPECT_EQ(line.at("kind"), "train");
  EXPECT_EQ(line.at("step"), 7);
  EXPECT_EQ(line.at("loss").get<double>(), record.loss);
  EXPECT_EQ(line.at("grad_norm").get<double>(), record.grad_norm);
  EXPECT_EQ(line.at("learning_rate").get<double>(), record.learning_rate);
  EXPECT_EQ(line.at("samples_per_second").get<double>(), record.samples_per_second);
  EXPECT_EQ(line.at("other_seconds").get<double>(), record.times.other());
}

TEST_F(MetricsFileTest, ALineOfSeveralStepsCoversThem) {
  {
    MetricsFile metrics(path_, up_to(0));
    metrics.write(TrainRecord{.step = 1, .loss = 4.0});
    metrics.write(TrainRecord{.step = 6, .steps = 3, .loss = 2.0});
    metrics.write(TrainRecord{.step = 7, .steps = 1, .loss = 1.0});
  }
  const std::string text = read_file(path_);
  EXPECT_THAT(text, testing::HasSubstr("\"step\":6"));
  EXPECT_THAT(text, testing::HasSubstr("\"steps\":3"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("\"steps\":1")));
  const MetricsFile continued(path_, up_to(8));
  EXPECT_EQ(continued.missing_steps(), "2 to 3, 8");
}

TEST_F(MetricsFileTest, FactsOfTheRunHaveTheStepBefore) {
  MetricsFile metrics(path_, up_to(4));
  metrics.write(RunEvent::kStart, {{"checkpoint", "step\xff"}});
  metrics.write(EvaluateRecord{.step = 5, .loss = 0.5});
  metrics.write(RunEvent::kMemory, {{"peak_bytes", 7}});
  EXPECT_EQ(untimed(read_file(path_)),
            "{\"kind\":\"run\",\"step\":4,\"event\":\"start\",\"checkpoint\":\"step\uFFFD\"}\n"
            "{\"kind\":\"evaluate\",\"step\":5,\"loss\":0.5}\n"
            "{\"kind\":\"run\",\"step\":5,\"event\":\"memory\",\"peak_bytes\":7}\n");
}

TEST_F(MetricsFileTest, OfARegressionHasNoAccuracy) {
  MetricsFile(path_, up_to(0)).write(EvaluateRecord{.step = 1, .loss = 2.0});
  EXPECT_FALSE(nlohmann::json::parse(read_file(path_)).contains("accuracy"));
}

TEST_F(MetricsFileTest, RefusesADirectoryThatIsNotThere) {
  const std::string text = strata::test::error_of(
      [&] { const MetricsFile metrics(directory_ / "none" / "metrics.jsonl", up_to(0)); },
      ExitCode::kUsage);
  EXPECT_NE(text.find("No such file or directory"), std::string::npos) << text;
}

}  // namespace
}  // namespace strata::train::metrics_test
