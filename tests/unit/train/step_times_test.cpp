#include "strata/train/step_times.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/comm/lone_rank.hpp"
#include "strata/core/clock.hpp"
#include "strata/device/buffer.hpp"

#include "../io/data_files.hpp"
#include "train_rank.hpp"

namespace strata::train::test::step_times_test {
namespace {

StepTimes times_of(double compute, double data) {
  StepTimes times{.step = 10.0, .compute = compute, .bubble = 0.5, .data = data};
  times.communication.of(grid::Axis::kTensor) = 0.25;
  return times;
}

comm::DeviceWaits waits_of(double stage, double data_group, double pipeline_group) {
  comm::DeviceWaits waits{.stage_seconds = stage};
  waits.groups.of(grid::Axis::kData) = data_group;
  waits.groups.of(grid::Axis::kPipeline) = pipeline_group;
  return waits;
}

/// Exposed communication of the data, the pipeline and the tensor group.
void expect_communication(const StepTimes& times, double data, double pipeline, double tensor) {
  EXPECT_DOUBLE_EQ(times.communication.of(grid::Axis::kData), data);
  EXPECT_DOUBLE_EQ(times.communication.of(grid::Axis::kPipeline), pipeline);
  EXPECT_DOUBLE_EQ(times.communication.of(grid::Axis::kTensor), tensor);
}

TEST(StepTimes, WaitsOfTheStreamAreTakenFromCompute) {
  StepTimes times = times_of(4.0, 1.0);
  count_device_waits(times, waits_of(1.0, 1.5, 0.5));
  EXPECT_DOUBLE_EQ(times.compute, 1.0);
  EXPECT_DOUBLE_EQ(times.bubble, 1.5);
  expect_communication(times, 1.5, 0.5, 0.25);
  EXPECT_DOUBLE_EQ(times.data, 1.0);
  EXPECT_DOUBLE_EQ(times.other(), 4.25);
}

TEST(StepTimes, AStallDuringAWaitForSamplesDoesNotCountTwice) {
  StepTimes times = times_of(2.0, 7.0);
  const double other = times.other();
  count_device_waits(times, waits_of(2.0, 4.0, 2.0));
  EXPECT_DOUBLE_EQ(times.compute, 0.0);
  EXPECT_DOUBLE_EQ(times.bubble, 1.0);
  expect_communication(times, 1.0, 0.5, 0.25);
  EXPECT_DOUBLE_EQ(times.data, 7.0);
  EXPECT_DOUBLE_EQ(times.other(), other);
}

TEST(StepTimes, ChangeNothingWithoutWaits) {
  StepTimes times = times_of(4.0, 1.0);
  count_device_waits(times, {});
  EXPECT_DOUBLE_EQ(times.compute, 4.0);
  // The difference of two clocks may come out a little below 0.
  times.compute = -1e-9;
  count_device_waits(times, {.stage_seconds = 1.0});
  EXPECT_DOUBLE_EQ(times.compute, -1e-9);
  EXPECT_DOUBLE_EQ(times.bubble, 0.5);
}

/// The least duration of a throttle() and of a drain(), and the stalls that a drain() measures.
constexpr double kThrottleSeconds = 0.002;
constexpr double kDrainSeconds = 0.02;
constexpr double kStageSeconds = 0.012;
constexpr double kGroupSeconds = 0.006;

/// An engine whose compute stream stalls before each drain().
class StallingEngine final : public comm::ProgressEngine {
 public:
  void drain() override {
    wait(kDrainSeconds);
    waits_.stage_seconds += kStageSeconds;
    waits_.groups.of(grid::Axis::kPipeline) += kGroupSeconds;
  }
  void throttle() override { wait(kThrottleSeconds); }
  comm::DeviceWaits take_device_waits() override {
    waited_on_host.push_back(std::exchange(waiting_seconds_, 0.0));
    taken.push_back(std::llround(waits_.stage_seconds / kStageSeconds));
    return std::exchange(waits_, {});
  }

  /// What each take_device_waits() returned, in multiples of a drain().
  std::vector<std::int64_t> taken;
  /// The seconds of throttle() and drain() before each take_device_waits() and after the last.
  std::vector<double> waited_on_host;

 private:
  void wait(double seconds) {
    const double begin = now_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    waiting_seconds_ += now_seconds() - begin;
  }

  comm::DeviceWaits waits_;
  double waiting_seconds_ = 0.0;
};

class DeviceWaits : public testing::Test {
 protected:
  DeviceWaits() {
    const io::ImportReport report = io::test::import_images(directory_, 52, "40,12");
    base_.data.train = report.train.string();
    base_.data.test = report.test.string();
    base_.run.dir = (directory_ / "run").string();
    base_.run.threads = 1;
    base_.model.layers = {"flatten", "dense 8 relu", "dense 3"};
    base_.batch.global = 24;
    base_.batch.micro = 12;
    base_.train.steps = 3;
    base_.train.evaluate_every = 2;
    base_.checkpoint.every = 1;
  }

  io::test::TemporaryDirectory directory_;
  config::RunConfig base_;
  StallingEngine engine_;
};

TEST_F(DeviceWaits, CountForTheirStepAndNotForCheckpointsAndEvaluations) {
  comm::LoneRank world("world");
  std::filesystem::create_directories(checkpoint_root(base_));
  train_rank(world, engine_, base_, [](const auto&) { return "a config"; });
  // The sniff test; before the first step; then step, checkpoint; step, evaluation, checkpoint; and
  // the end's.
  using testing::Ge;
  ASSERT_THAT(engine_.taken,
              testing::ElementsAre(Ge(1), 0, 1, Ge(1), 1, Ge(1), Ge(1), 1, Ge(1), Ge(1)));
  constexpr std::array<std::size_t, 3> kOfSteps{2, 4, 7};
  std::ifstream lines(directory_ / "run/metrics.jsonl");
  for (std::string text; std::getline(lines, text);) {
    const nlohmann::json line = nlohmann::json::parse(text);
    if (line.at("kind") != "train") {
      continue;
    }
    EXPECT_GE(seconds_of(line, "bubble"), kStageSeconds);
    EXPECT_GE(seconds_of(line, "pipeline_group"), kGroupSeconds);
    // The host waits for its GPU while that computes or stalls.
    EXPECT_GE(seconds_of(line, "compute") + seconds_of(line, "communication") +
                  seconds_of(line, "bubble"),
              engine_.waited_on_host.at(kOfSteps.at(line.at("step").get<std::size_t>() - 1)));
    expect_parts_of_step(line);
  }
}

}  // namespace
}  // namespace strata::train::test::step_times_test
