#include "environment/watchdog.hpp"

#include <chrono>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "strata/core/blocked_signals.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/host_name.hpp"

#include "../io/data_files.hpp"

namespace strata::app::test::watchdog_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

double time_of_heartbeats = 100.0;

double heartbeat_time() {
  return time_of_heartbeats;
}

TEST(WatchdogSetup, TakesTheRunFromTheCommandLineAndNotAnOptionsValue) {
  const io::test::TemporaryDirectory run;
  std::ofstream(run.path() / "config.ini") << "[model]\nlayer = dense 4\n[run]\ntimeout = 7\n";
  const config::Command command{.name = "evaluate",
                                .options = {{"checkpoint", "newest|best", ""}},
                                .settings = config::TakesSettings::kTaken};
  const std::vector<std::string> arguments{"--checkpoint", "best", run.path().string()};
  const config::CommandLine line(command, arguments);
  const comm::Activity activity;
  const WatchdogSetup setup = watchdog_setup(&line, activity);
  EXPECT_EQ(setup.run_directory, run.path());
  EXPECT_EQ(setup.timeout_seconds, 7.0);
  const std::vector<std::string> alone{"--run.timeout=30"};
  const config::CommandLine without_run(command, alone);
  EXPECT_EQ(watchdog_setup(&without_run, activity).timeout_seconds, 30.0);
  EXPECT_TRUE(watchdog_setup(nullptr, activity).run_directory.empty());
}

TEST(Heartbeats, TellWhichRanksAreSilentAndWhichIsIdle) {
  const io::test::TemporaryDirectory directory;
  Heartbeats own(directory.path(), "job", 0, 3, heartbeat_time);
  Heartbeats peer(directory.path(), "job", 1, 3, heartbeat_time);
  std::filesystem::create_directories(directory / "heartbeats");
  ASSERT_EQ(mkfifo((directory / "heartbeats/job-rank-0").c_str(), 0644), 0) << "own, not read";
  const std::string who = fmt::format(". Rank 1 (host {}, process {}) ", host_name(), getpid());
  const std::string never = ". Rank 2 has not written a heartbeat";
  peer.write("save, not waiting");
  own.look_at_peers();
  EXPECT_EQ(own.silent_ranks(2.0), "");
  time_of_heartbeats += 3.0;
  EXPECT_EQ(own.silent_ranks(2.0), "") << "a look may hang";
  peer.write("training, step 7, not waiting");
  own.look_at_peers();
  EXPECT_EQ(own.silent_ranks(2.0), never);
  EXPECT_EQ(own.idle_rank(), who + "responds but waits for nobody: training, step 7, not waiting");
  time_of_heartbeats += 3.0;
  own.look_at_peers();
  EXPECT_EQ(own.silent_ranks(2.0), who +
                                       "has not responded for 3 s; its last heartbeat: training, "
                                       "step 7, not waiting" +
                                       never);
  own.stop_looking();
  EXPECT_NE(own.silent_ranks(2.0), "") << "a report may follow";
  time_of_heartbeats += 4.0;
  own.stop_looking();
  EXPECT_EQ(own.silent_ranks(2.0), "");
}

TEST(Heartbeats, OneRankReportsAndFilesOfOtherJobsGo) {
  const io::test::TemporaryDirectory directory;
  const std::filesystem::path old = directory / "heartbeats/killed-rank-0";
  {
    Heartbeats own(directory.path(), "job", 0, 2);
    EXPECT_TRUE(Heartbeats::first_to_report(own.claim()));
    EXPECT_FALSE(Heartbeats::first_to_report(Heartbeats(directory.path(), "job", 1, 2).claim()));
    std::ofstream(old) << "1 host 1 training\n";
    std::filesystem::last_write_time(
        old, std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
    own.write("start");
    EXPECT_FALSE(std::filesystem::exists(old));
    EXPECT_TRUE(Heartbeats::first_to_report(own.claim())) << "the claim of the job before";
    EXPECT_TRUE(std::filesystem::exists(directory / "heartbeats/job-rank-0"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "heartbeats/job-rank-0"));
  EXPECT_TRUE(Heartbeats::first_to_report("/dev/null/none/claim"));
}

// So long a thread that looks at files may wait for a core.
constexpr double kTimeout = 0.9;
// So long other threads have for a look, and they may wait for a core.
constexpr double kSecond = 0.4;

/// A watchdog of this thread, which then waits; what it prints before it ends the process.
std::string report_of(const std::filesystem::path& run_directory, const comm::Activity& activity,
                      double seconds) {
  ::testing::internal::CaptureStderr();
  std::promise<void> ended;
  int pipe = -1;
  {
    const Watchdog watchdog({.timeout_seconds = kTimeout,
                             .run_directory = run_directory,
                             .rank = 0,
                             .ranks = 2,
                             .job = "job",
                             .end = [&] { ended.set_value(); },
                             .second = kSecond},
                            activity);
    ended.get_future().wait_for(std::chrono::duration<double>(seconds));
    // Lets a heartbeat go on that hangs in a pipe.
    const std::filesystem::path away = run_directory / "away";
    std::error_code ignored;
    std::filesystem::rename(run_directory / "heartbeats/job-rank-0", away, ignored);
    pipe = open(away.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  }
  close(pipe);
  return ::testing::internal::GetCapturedStderr();
}

constexpr double kLong = 10.0;
constexpr double kPastTimeout = kTimeout + 2.0 * kSecond;

TEST(Watchdog, EndsABlockedCallOfALibraryAndWritesAReport) {
  const io::test::TemporaryDirectory directory;
  comm::Activity activity;
  activity.enter(comm::Phase::kSetup);
  activity.record(activity.add_group("data group"), "send", 1, 3, 8);
  activity.set_file_seconds(kLong);
  const comm::WaitMark mark(&activity, comm::WaitKind::kLibraryCall, "split the world");
  EXPECT_THAT(report_of(directory.path(), activity, kLong),
              AllOf(HasSubstr("strata: rank 0: timed out after "),
                    HasSubstr(" s waiting to split the world. "),
                    HasSubstr(". Rank 1 has not written a heartbeat")));
  std::ifstream report(directory / "report-rank-0.txt");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(report), {}),
              AllOf(HasSubstr("\nset-up, last operation send 1 of the data group, waiting"),
                    HasSubstr("\n  send 1 of the data group, rank 3 there, 8 bytes\n"),
                    HasSubstr("\nstack of the main thread:\n"), Not(HasSubstr("none:"))));
}

TEST(Watchdog, EndsAThreadThatStandsStill) {
  comm::Activity activity;
  EXPECT_THAT(report_of({}, activity, kLong), HasSubstr("waiting to return from a system call"));
}

TEST(Watchdog, GivesFilesMoreTimeUnlessAPeerIsGoneOrTheRunDirectoryHangs) {
  comm::Activity activity;
  activity.set_file_seconds(kLong);
  EXPECT_THAT(report_of({}, activity, kPastTimeout), IsEmpty());
  {
    const io::test::TemporaryDirectory directory;
    EXPECT_THAT(report_of(directory.path(), activity, kLong), HasSubstr(". Rank 1 has not"));
  }
  const io::test::TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "heartbeats");
  ASSERT_EQ(mkfifo((directory / "heartbeats/job-rank-0").c_str(), 0644), 0);
  EXPECT_THAT(report_of(directory.path(), activity, kLong), HasSubstr(" does not respond. Submit"));
}

TEST(Watchdog, LeavesMessagesToTheMainThread) {
  comm::Activity activity;
  const comm::WaitMark mark(&activity, comm::WaitKind::kMessage, "receive");
  EXPECT_THAT(report_of({}, activity, kPastTimeout), IsEmpty());
}

TEST(Watchdog, LooksForMissingRanksWhenItReports) {
  const io::test::TemporaryDirectory directory;
  comm::Activity activity;
  ::testing::internal::CaptureStderr();
  {
    // A rank is missing after 0.8 seconds of silence; looks end after 1.5 seconds, far apart where
    // the thread that looks waits for a core.
    constexpr double kLongSecond = 2.0;
    Watchdog watchdog({.timeout_seconds = 2.0 * kLongSecond,
                       .run_directory = directory.path(),
                       .rank = 0,
                       .ranks = 2,
                       .job = "job",
                       .end = [] {},
                       .second = kLongSecond},
                      activity);
    watchdog.report_timeout("timed out");
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("timed out. Rank 1 has not"));
}

TEST(Watchdog, WhatWritesItsReportUsesNothingOfIt) {
  const io::test::TemporaryDirectory directory;
  comm::Activity activity;
  // The stack of a thread that takes no signal is awaited for longer than the report.
  const BlockedSignals blocked;
  {
    const Watchdog watchdog({.timeout_seconds = kLong,
                             .run_directory = directory.path(),
                             .rank = 3,
                             .ranks = 4,
                             .job = "job",
                             .end = [] {}},
                            activity);
    watchdog.write_report("timed out");
  }
  std::string report;
  for (const double end = now_seconds() + 10.0 * kLong;
       report.find("\n  none: ") == std::string::npos && now_seconds() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::ifstream file(directory / "report-rank-3.txt");
    report.assign(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_THAT(report, AllOf(HasSubstr("rank 3 on "), HasSubstr(": timed out\nstart"),
                            HasSubstr("\nstack of the main thread:\n  none: ")));
}

TEST(Watchdog, LetsAThreadWork) {
  comm::Activity activity;
  ::testing::internal::CaptureStderr();
  {
    const Watchdog watchdog({.timeout_seconds = kTimeout,
                             .run_directory = {},
                             .rank = 0,
                             .ranks = 2,
                             .job = "job",
                             .end = [] {},
                             .second = 0.05},
                            activity);
    const double end = now_seconds() + kPastTimeout;
    while (now_seconds() < end) {
    }
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), IsEmpty());
}

}  // namespace
}  // namespace strata::app::test::watchdog_test
