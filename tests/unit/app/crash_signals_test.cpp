#include "environment/crash_signals.hpp"

#include <csignal>

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

}  // namespace
}  // namespace strata::app::test::crash_signals_test
