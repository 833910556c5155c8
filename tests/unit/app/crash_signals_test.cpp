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
        install_crash_signals(3, nullptr);
        raise(SIGSEGV);
      },
      testing::KilledBySignal(SIGSEGV),
      "rank 3: crashed with SIGSEGV(.|\n)*the handler of a library did not end");
}

}  // namespace
}  // namespace strata::app::test::crash_signals_test
