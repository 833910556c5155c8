#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

namespace strata::app {

constexpr std::int64_t kMostTracedRanks = std::int64_t{1} << 20;
constexpr double kMilliseconds = 1e-3;  ///< of a microsecond

/// A rank's place in the grid, in the order of pictures.
struct Place {
  std::int64_t replica = 0;
  std::int64_t tensor = 0;
  std::int64_t stage = 0;

  friend auto operator<=>(const Place&, const Place&) = default;
};

/// A message's way, and its time from the begin of the send to the end of the receive.
struct Message {
  std::int64_t from = 0;  ///< ranks
  std::int64_t to = 0;
  double milliseconds = 0.0;
};

/// What a timeline.json holds (docs/formats.md).
struct Trace {
  std::map<std::int64_t, Place> places;  ///< by rank
  nlohmann::json::array_t steps;         ///< slices of whole steps
  nlohmann::json::array_t actions;
  std::map<std::string, Message> messages;  ///< by id
};

/// Reads a timeline, or that of a run's directory. Throws: Error(kUsage) where there is none, with
/// how to record one, or where the file is none of strata's timelines.
[[nodiscard]] Trace read_trace(const std::string& path);

}  // namespace strata::app
