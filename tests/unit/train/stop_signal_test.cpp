#include "strata/train/stop_signal.hpp"

#include <csignal>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace strata::train::stop_signal_test {
namespace {

extern "C" void handler_of_a_library(int /*signal*/) {}

TEST(StopSignals, OfSitesAreTakenWhereNobodyElseHandlesThem) {
  for (const auto& [signal, before, is_taken] :
       std::vector<std::tuple<int, void (*)(int), bool>>{{SIGHUP, SIG_DFL, true},
                                                         {SIGHUP, SIG_IGN, false},
                                                         {SIGUSR2, SIG_DFL, true},
                                                         {SIGUSR2, handler_of_a_library, false}}) {
    std::signal(signal, before);
    install_stop_signals();
    EXPECT_EQ(std::signal(signal, SIG_DFL) != before, is_taken) << signal;
  }
}

}  // namespace
}  // namespace strata::train::stop_signal_test
