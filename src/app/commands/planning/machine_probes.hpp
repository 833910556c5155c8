#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "strata/comm/communicator.hpp"
#include "strata/comm/progress_engine.hpp"
#include "strata/device/device.hpp"
#include "strata/forecast/machine.hpp"

namespace strata::app {

/// Waits for all ranks without keeping a core busy. Communication: collective over the world.
void sleeping_barrier(comm::Communicator& world);

/// The ranks with `mine` equal to this rank's, in order. Communication: collective over the world.
[[nodiscard]] std::unique_ptr<comm::Communicator> ranks_with(comm::Communicator& world,
                                                             const std::string& mine,
                                                             const std::string& name);

/// What one message of `bytes` to and from each other rank takes, in the memory of `device`: the
/// best round, which other programs disturb least, of the slowest rank. `engine`: of the group's
/// transport. Pre: a group of several. Communication: collective over the group.
[[nodiscard]] double exchange_seconds(comm::Communicator& group, comm::ProgressEngine& engine,
                                      const device::Device& device, std::int64_t bytes);

/// Latency and bandwidth of messages that all ranks of a group exchange with each other, as
/// gradients are. Communication: collective over the group.
[[nodiscard]] forecast::Link link_of(comm::Communicator& group);

/// What a small exchange costs after a millisecond of work, where the ranks of a node take turns
/// on its cores. `turns`: ranks of a core. Communication: collective over the node's ranks.
[[nodiscard]] double context_switch_seconds(comm::Communicator& node, double turns);

/// Bytes per second.
struct FileSpeed {
  double write = 0.0;  ///< with the sync
  double read = 0.0;   ///< from the disk
};

/// Writes a file without a name in the directory, and reads it back. Returns: nothing, with errno,
/// where that fails.
[[nodiscard]] std::optional<FileSpeed> file_speed(const std::filesystem::path& directory,
                                                  std::int64_t bytes);

}  // namespace strata::app
