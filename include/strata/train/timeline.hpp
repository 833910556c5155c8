#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"

namespace strata::train {

/// A trace of each rank's actions, in the format of chrome://tracing and Perfetto.
class Timeline {
 public:
  /// The limit of events per rank; later events are dropped to bound memory.
  static constexpr std::int64_t kMostEvents = 20000;

  /// Begin and end in seconds of the steady clock.
  void add(const std::string& name, double begin, double end);
  /// Gathers the events of all ranks and writes them on rank 0. Communication: collective over the
  /// world. Throws: AgreedError(kUsage) where the file cannot be written.
  void write(comm::Communicator& world, const std::filesystem::path& path) const;

 private:
  struct Event {
    std::string name;
    double begin = 0.0;
    double end = 0.0;
  };

  std::vector<Event> events_;
};

}  // namespace strata::train
