#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace strata::bench {

/// A span of time, in nanoseconds of one clock.
struct Interval {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// A kernel or a copy that a GPU did.
struct Activity {
  Interval time;
  std::size_t name = 0;  ///< its number in Recording::names
};

/// What one GPU did, on all streams.
struct Recording {
  std::vector<Activity> activities;
  std::vector<std::string> names;
  /// Activities whose times are not known.
  std::int64_t lost = 0;
};

/// What of a recording is looked at.
struct Window {
  Interval time;
  /// Activities that end a step; 0 where the window does not follow from steps.
  std::int64_t step_ends = 0;
};

/// The second half of a recording. `step_end` is part of the name of kernels that every step ends
/// with: the window is then from the end of the middle one to that of the last, so that an even
/// number of like steps is halved, and what comes behind the last is left out. Empty: from the
/// beginning of the middle activity to the end of all. Nothing where fewer than 2 end a step.
[[nodiscard]] Window second_half(const Recording& recording, std::string_view step_end);

/// Time within `window` in which at least one of `activities` was under way.
[[nodiscard]] std::int64_t busy_ns(std::span<const Activity> activities, const Interval& window);

/// All activities of one name.
struct Share {
  std::string name;
  std::int64_t count = 0;
  std::int64_t total_ns = 0;
};

/// The names with most time among the activities that begin within `window`, at most `most`, in
/// order of time, then of name.
[[nodiscard]] std::vector<Share> largest_shares(const Recording& recording, const Interval& window,
                                                std::size_t most);

/// Idle time between two activities.
struct Gap {
  std::string before;
  std::string after;
  std::int64_t count = 0;
  std::int64_t total_ns = 0;
};

/// Idle time between activities that begin within `window`, at most `most` pairs of names, in order
/// of time, then of names.
[[nodiscard]] std::vector<Gap> largest_gaps(const Recording& recording, const Interval& window,
                                            std::size_t most);

/// The window, its busy time, its largest shares and gaps; bench/README.md has the keys.
[[nodiscard]] nlohmann::json idle_report(const Recording& recording, std::string_view step_end);

}  // namespace strata::bench
