#include "loop/run_clock.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace strata::train::test::run_clock_test {
namespace {

TEST(RunClock, SavesOnceEarlyAndThenByTheInterval) {
  RunClock clock({.began = 1000.0, .save_interval_seconds = 1800.0});
  for (int step = 0; step < 3; ++step) {
    EXPECT_FALSE(clock.save_due(1030.0)) << step;
    clock.step_done(10.0);
  }
  EXPECT_FALSE(clock.save_due(1019.0));
  EXPECT_TRUE(clock.save_due(1020.0));
  clock.save_began(1032.0);
  EXPECT_FALSE(clock.save_due(2831.0));
  EXPECT_TRUE(clock.save_due(2832.0));
  EXPECT_FALSE(RunClock({.began = 0.0, .save_interval_seconds = 0.0}).save_due(1e9));
}

TEST(RunClock, AFailedSaveIsNotMeasuredAndSoonRepeated) {
  for (const double interval : {1800.0, 20.0}) {
    RunClock clock({.began = 0.0, .save_interval_seconds = interval, .assumed_save_seconds = 50.0});
    clock.save_began(2000.0);
    clock.save_failed(2001.0);
    clock.save_failed(2050.0);  // no save is under way
    EXPECT_EQ(clock.save_seconds(), 50.0);
    const double due = 2001.0 + std::min(60.0, interval);
    EXPECT_FALSE(clock.save_due(due - 1.0));
    EXPECT_TRUE(clock.save_due(due));
  }
}

TEST(RunClock, StopsTwoStepsAndASaveAheadOfTheEnd) {
  RunClock clock({.began = 0.0, .ends = 100.0, .assumed_save_seconds = 5.0});
  // A copy, because time that is over stays so.
  const auto stops = [&](double now) { return RunClock(clock).stop_due(now); };
  EXPECT_FALSE(stops(94.0));
  EXPECT_TRUE(stops(95.0));
  clock.step_done(10.0);
  EXPECT_FALSE(stops(74.0));
  EXPECT_TRUE(stops(75.0));
  // The longest of the saves counts, and the one under way.
  for (const double seconds : {12.0, 1.0}) {
    clock.save_began(20.0);
    EXPECT_EQ(stops(69.0), seconds == 1.0);
    clock.save_ended(20.0 + seconds);
    clock.save_ended(99.0);
  }
  EXPECT_FALSE(stops(67.0));
  EXPECT_TRUE(stops(68.0));
  // A slow first step is forgotten.
  for (int step = 0; step < 100; ++step) {
    clock.step_done(1.0);
  }
  EXPECT_EQ(clock.step_seconds(), 1.0);
  EXPECT_FALSE(RunClock({}).stop_due(1e9));
}

TEST(RunClock, WarnsOfATimeLimitThatLeavesNoRoomToTrain) {
  for (const int steps : {1, 2}) {
    RunClock clock({.began = 0.0, .ends = 4.0, .assumed_save_seconds = 5.0});
    for (int step = 0; step < steps; ++step) {
      clock.step_done(2.0);
    }
    EXPECT_EQ(clock.time_limit_warning(), "");
    EXPECT_TRUE(clock.stop_due(0.0));
    EXPECT_TRUE(clock.stop_due(-100.0));
    EXPECT_EQ(clock.time_limit_warning().find("a step takes 2.0 s, and a checkpoint 5.0 s") <
                  std::string::npos,
              steps == 1);
  }
}

}  // namespace
}  // namespace strata::train::test::run_clock_test
