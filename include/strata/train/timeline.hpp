#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/grid/grid.hpp"
#include "strata/pipeline/schedule.hpp"
#include "strata/train/step_times.hpp"

namespace strata::train {

/// A trace of some steps on all ranks, in the format of chrome://tracing and Perfetto
/// (docs/formats.md).
class Timeline {
 public:
  /// The limit of events per rank; a timeline has at least one step.
  static constexpr std::int64_t kMostEvents = 20000;

  /// Of a rank at these coordinates, which runs `schedule`.
  Timeline(const grid::Coordinates& at, const pipeline::Schedule& schedule)
      : at_(at), schedule_(schedule) {}

  /// An action of a step. Begin and end in seconds of the steady clock.
  void add(std::int64_t step, const pipeline::Action& action, double begin, double end);
  /// A whole step, which encloses its actions, and its time account.
  void add_step(std::int64_t step, double begin, double end, const StepTimes& times);
  /// Whether another step could exceed the limit on some rank. The same on all ranks.
  [[nodiscard]] bool is_full() const;
  /// Gathers the events of all ranks and writes them on rank 0, in rank 0's clock. Communication:
  /// collective over the world. Throws: AgreedError(kUsage) where the file cannot be written.
  void write(comm::Communicator& world, const std::filesystem::path& path) const;

 private:
  enum class Track { kCompute, kCommunication };

  struct Event {
    Track track = Track::kCompute;
    std::string name;
    const char* colour = "";
    double begin = 0.0;
    double end = 0.0;
    /// The message of a pipeline that a send begins and a receive ends; else empty.
    std::string message;
    bool sends = false;
    std::string details;  ///< the JSON members of "args"
  };

  /// The events as JSON objects, each behind a comma, of one of `ranks`. `origin`: what is 0.
  [[nodiscard]] std::string json(std::int64_t rank, std::int64_t ranks, double origin) const;

  grid::Coordinates at_;
  const pipeline::Schedule& schedule_;
  std::vector<Event> events_;
  std::int64_t steps_ = 0;
  /// How often a message of a name occurred: a repeated step has each twice.
  std::map<std::string, std::int64_t> messages_;
};

}  // namespace strata::train
