#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace strata::app {

/// A recorded step of one pipeline.
struct StepChoice {
  std::optional<std::int64_t> step;  ///< nothing: the first recorded one
  std::int64_t data = 0;
  std::int64_t tensor = 0;
};

struct StepPicture {
  std::int64_t step = 0;
  std::string svg;
};

/// Draws a step that a timeline.json holds. Throws: Error(kUsage) where it holds no such step, or
/// is none of strata's timelines.
[[nodiscard]] StepPicture step_picture(const std::string& path, const StepChoice& choice);

}  // namespace strata::app
