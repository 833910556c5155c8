#pragma once

#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/comm/progress_engine.hpp"
#include "strata/device/device.hpp"
#include "strata/forecast/machine.hpp"

namespace strata::app {

/// What messages of three sizes take between the ranks of one kind of link, of the slowest group.
struct MessageTimes {
  std::string what;  ///< as in "in a node"
  /// Ranks that exchange, each with each other one.
  std::int64_t ranks = 1;
  /// One of the slowest group's hosts, as in "node1".
  std::string host;
  struct One {
    std::int64_t bytes = 0;
    double seconds = 0.0;  ///< to and from each other rank
  };
  std::vector<One> messages;
};

/// Times messages in the memory of `device`, between ranks of a node and between nodes; empty where
/// there are none. `world` and `engine`: over the transport to be timed. `rank_on_node`: of this
/// rank. Communication: collective over the world.
[[nodiscard]] std::vector<MessageTimes> time_messages(comm::Communicator& world,
                                                      comm::ProgressEngine& engine,
                                                      const device::Device& device,
                                                      std::int64_t rank_on_node);

/// A line, as in "messages in a node, 4 ranks each with each other one: 8 B 1.1 us, 64.00 KiB 30 us
/// (6.6 GB/s), ...".
[[nodiscard]] std::string message_line(const MessageTimes& times);

/// What is far from the machine's figures, each with what to do.
[[nodiscard]] std::vector<std::string> message_problems(const MessageTimes& times,
                                                        const forecast::Machine& machine);

}  // namespace strata::app
