#include "environment/crash_signals.hpp"

#include <csignal>
#include <optional>

#include <gtest/gtest.h>
#include <unistd.h>

namespace strata::app::test::crash_signals_test {
namespace {

extern "C" void wait_forever(int /*signal*/) {
  while (true) {
    pause();
  }
}

TEST(CrashSignals, EndTheProcessWhereALibrarysHandlerHangs) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, wait_forever);
        sigset_t alarms;
        sigemptyset(&alarms);
        sigaddset(&alarms, SIGALRM);
        pthread_sigmask(SIG_BLOCK, &alarms, nullptr);
        install_crash_signals(3, nullptr);
        raise(SIGSEGV);
      },
      testing::KilledBySignal(SIGSEGV),
      "rank 3: crashed with SIGSEGV(.|\n)*a handler of the crash did not end within 10 s");
}

TEST(CrashSignals, AreNoFailureOfACommandThatIsCompleteWhereMpiIsFinalized) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        comm::Activity activity;
        activity.enter(comm::Phase::kEnd);
        install_crash_signals(3, &activity);
        set_code_of_end(ExitCode::kStoppedEarly);
        raise(SIGSEGV);
      },
      testing::ExitedWithCode(75),
      "rank 3: crashed with SIGSEGV in phase end .MPI_Finalize., .* complete, with exit code 75, ");
  for (const comm::Phase phase : {comm::Phase::kTraining, comm::Phase::kEnd}) {
    EXPECT_EXIT(
        {
          // not the handler of a sanitizer, which ends the process by exit()
          std::signal(SIGSEGV, SIG_DFL);
          comm::Activity activity;
          activity.enter(phase);
          install_crash_signals(3, &activity);
          set_code_of_end(ExitCode::kStoppedEarly);
          if (phase == comm::Phase::kEnd) {
            set_code_of_end(std::nullopt);
          }
          raise(SIGSEGV);
        },
        testing::KilledBySignal(SIGSEGV), "please report it");
  }
}

}  // namespace
}  // namespace strata::app::test::crash_signals_test
