#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace strata::app {

/// A recorded step.
struct StepChoice {
  std::optional<std::int64_t> step = std::nullopt;  ///< nothing: the first recorded one
  std::optional<std::int64_t> data =
      std::nullopt;  ///< nothing: the replicas that there is room for
  std::int64_t tensor = 0;
};

struct StepPicture {
  std::int64_t step = 0;
  std::int64_t left_out = 0;  ///< replicas for which there is no room
  std::string svg = "";
};

/// Draws a step that a timeline.json holds. Throws: Error(kUsage) where it holds no such step, or
/// is none of strata's timelines.
[[nodiscard]] StepPicture step_picture(const std::string& path, const StepChoice& choice);

}  // namespace strata::app
