#include "commands/planning/doctor_messages.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "in_process.hpp"

namespace strata::app::doctor_messages_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Three ranks that exchange messages of 8 bytes, 64 KiB and 4 MiB with two others each.
MessageTimes times_of(const std::string& what, double small, double medium, double large) {
  return {.what = what,
          .ranks = 3,
          .host = "node2",
          .messages = {{8, small}, {1 << 16, medium}, {4 << 20, large}}};
}

forecast::Machine machine_of(double latency_seconds, double bytes_per_second) {
  forecast::Machine machine;
  machine.name = "cluster";
  machine.node =
      machine.network = {.latency_seconds = latency_seconds, .bytes_per_second = bytes_per_second};
  return machine;
}

TEST(DoctorMessages, NamesThoseThatAreFarFromTheMachines) {
  // 2 us for two of 8 bytes; 67 us and 4.2 ms for two of 64 KiB and of 4 MiB.
  const forecast::Machine machine = machine_of(1e-6, 2e9);
  EXPECT_THAT(message_problems(times_of("in a node", 7e-6, 1.3e-4, 8e-3), machine), IsEmpty());
  EXPECT_THAT(message_problems(times_of("in a node", 1e-5, 1.3e-4, 9e-3), machine),
              ElementsAre(AllOf(HasSubstr("messages of 8 B"), HasSubstr("in a node (node2) take"),
                                HasSubstr("other work on the node")),
                          AllOf(HasSubstr("messages of 4.00 MiB in a node (node2) take 9e+03 us"),
                                HasSubstr("on cluster, 2.1 times as long as there"))));
  EXPECT_THAT(
      message_problems(times_of("between nodes", 1e-6, 1e-3, 4e-3), machine),
      ElementsAre(AllOf(HasSubstr("64.00 KiB between nodes"), HasSubstr("NCCL_SOCKET_IFNAME"))));
  forecast::Machine gpus = machine;
  gpus.device = device::DeviceKind::kCuda;
  EXPECT_THAT(message_problems(times_of("in a node", 1e-4, 1e-3, 1.0), gpus),
              ElementsAre(HasSubstr("--gpu-bind=none")));
  // A machine without figures of messages says nothing of them.
  EXPECT_THAT(message_problems(times_of("in a node", 1.0, 1.0, 1.0), machine_of(0.0, 0.0)),
              IsEmpty());
}

TEST(DoctorMessages, SaysTimesAndRates) {
  EXPECT_EQ(message_line(times_of("in a node", 2e-6, 1e-4, 4e-3)),
            "messages in a node, 3 ranks each with each other one: 8 B 2 us, 64.00 KiB 100 us "
            "(1.31 GB/s), 4.00 MiB 4e+03 us (2.1 GB/s)");
}

TEST(DoctorMessages, AreTimedInANode) {
  comm::run_in_process_ranks(2, [](comm::Communicator& world) {
    comm::ProgressEngine engine;
    const std::vector<MessageTimes> times =
        time_messages(world, engine, device::Device::cpu(), world.rank());
    ASSERT_EQ(times.size(), 1U);  // the ranks of different nodes are alone
    EXPECT_EQ(times.front().what, "in a node");
    EXPECT_EQ(times.front().ranks, 2);
    for (const MessageTimes::One& one : times.front().messages) {
      EXPECT_GT(one.seconds, 0.0);
    }
  });
}

}  // namespace
}  // namespace strata::app::doctor_messages_test
