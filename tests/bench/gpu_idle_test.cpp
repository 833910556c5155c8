#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "gpu_idle/activity.hpp"

namespace strata::bench {
namespace {

using ::testing::ElementsAre;

constexpr std::size_t kProduct = 0;
constexpr std::size_t kUpdate = 1;
constexpr std::size_t kCopy = 2;

Recording recording_of(std::vector<Activity> activities) {
  return {.activities = std::move(activities),
          .names = {"product<float>", "map<Adam<float>>", "[copy to the host]"}};
}

Activity from_to(std::int64_t begin_ns, std::int64_t end_ns, std::size_t name = kProduct) {
  return {.time = {.begin_ns = begin_ns, .end_ns = end_ns}, .name = name};
}

TEST(GpuIdle, BusyTimeIsTheUnionOverStreams) {
  const Interval window{.begin_ns = 0, .end_ns = 100};
  EXPECT_EQ(busy_ns({}, window), 0);
  // One within another, two that overlap, two that touch, out of order.
  const std::vector<Activity> activities{from_to(60, 70), from_to(10, 30), from_to(12, 15),
                                         from_to(25, 40), from_to(70, 75)};
  EXPECT_EQ(busy_ns(activities, window), 45);
  // The long one ends behind shorter ones that begin later.
  EXPECT_EQ(busy_ns(std::vector{from_to(0, 50), from_to(5, 10), from_to(20, 60)}, window), 60);
}

TEST(GpuIdle, BusyTimeEndsAtTheWindow) {
  const std::vector<Activity> activities{from_to(0, 20), from_to(30, 60), from_to(90, 120)};
  EXPECT_EQ(busy_ns(activities, {.begin_ns = 10, .end_ns = 100}), 10 + 30 + 10);
  EXPECT_EQ(busy_ns(activities, {.begin_ns = 40, .end_ns = 50}), 10);
  EXPECT_EQ(busy_ns(activities, {.begin_ns = 20, .end_ns = 30}), 0);
}

TEST(GpuIdle, WindowIsTheSecondHalfOfWhatWasRecorded) {
  const Window window = second_half(
      recording_of({from_to(30, 90), from_to(0, 10), from_to(40, 50), from_to(20, 25)}), "");
  EXPECT_EQ(window.time.begin_ns, 30);
  EXPECT_EQ(window.time.end_ns, 90);
  EXPECT_EQ(window.step_ends, 0);
}

TEST(GpuIdle, WindowIsHalfOfTheStepsWithoutWhatFollows) {
  // Four steps of two updates each, then a checkpoint's copy.
  std::vector<Activity> activities;
  for (std::int64_t step = 0; step < 4; ++step) {
    activities.push_back(from_to(100 * step, 100 * step + 60));
    activities.push_back(from_to(100 * step + 70, 100 * step + 80, kUpdate));
    activities.push_back(from_to(100 * step + 80, 100 * step + 90, kUpdate));
  }
  activities.push_back(from_to(1000, 2000, kCopy));
  const Recording recording = recording_of(activities);
  const Window window = second_half(recording, "Adam<");
  EXPECT_EQ(window.time.begin_ns, 190);
  EXPECT_EQ(window.time.end_ns, 390);
  EXPECT_EQ(window.step_ends, 8);

  const nlohmann::json report = idle_report(recording, "Adam<");
  EXPECT_DOUBLE_EQ(report.at("window_seconds").get<double>(), 200e-9);
  EXPECT_DOUBLE_EQ(report.at("busy_seconds").get<double>(), 160e-9);
  EXPECT_DOUBLE_EQ(report.at("idle_share").get<double>(), 0.2);
  EXPECT_EQ(report.at("activities").get<int>(), 13);
  EXPECT_EQ(report.at("kernels").size(), 2);
  // 10 ns before each step's update, 10 ns before the next step; the window begins within a gap.
  const std::vector<Gap> gaps = largest_gaps(recording, window.time, 1);
  ASSERT_EQ(gaps.size(), 1);
  EXPECT_EQ(gaps.front().count, 2);
  EXPECT_EQ(gaps.front().total_ns, 20);
  EXPECT_EQ(report.at("gaps").at(0).at("before"), gaps.front().before);
  EXPECT_EQ(largest_gaps(recording, window.time, 9).size(), 2);
}

TEST(GpuIdle, NoWindowWithoutTwoEndsOfSteps) {
  const Recording recording = recording_of({from_to(0, 10), from_to(10, 20, kUpdate)});
  EXPECT_EQ(second_half(recording, "Adam<").step_ends, 1);
  EXPECT_EQ(second_half(recording, "Sgd<").step_ends, 0);
  EXPECT_TRUE(idle_report(recording, "Adam<").at("idle_share").is_null());
  EXPECT_TRUE(idle_report(Recording(), "").at("idle_share").is_null());
}

TEST(GpuIdle, SharesAreInOrderOfTime) {
  const Recording recording =
      recording_of({from_to(0, 5, kUpdate), from_to(10, 15), from_to(20, 50, kCopy),
                    from_to(60, 75, kUpdate), from_to(200, 900)});
  const auto names = [](const std::vector<Share>& shares) {
    std::vector<std::string> found;
    for (const Share& share : shares) {
      found.push_back(share.name);
    }
    return found;
  };
  const Interval window{.begin_ns = 0, .end_ns = 100};
  const std::vector<Share> shares = largest_shares(recording, window, 10);
  EXPECT_THAT(names(shares),
              ElementsAre("[copy to the host]", "map<Adam<float>>", "product<float>"));
  EXPECT_EQ(shares[1].count, 2);
  EXPECT_EQ(shares[1].total_ns, 20);
  EXPECT_EQ(shares[2].total_ns, 5);
  EXPECT_THAT(names(largest_shares(recording, window, 1)), ElementsAre("[copy to the host]"));
}

}  // namespace
}  // namespace strata::bench
