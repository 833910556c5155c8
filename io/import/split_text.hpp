#pragma once

#include <cstdint>
#include <string_view>

namespace strata::io {

/// Sizes of the splits of a data set.
struct SplitCounts {
  std::int64_t train = 0;
  std::int64_t test = 0;
};

/// Parses split sizes such as "8000,2000", "0.9,0.1", "90%,10%" or "1.0". A number with a point or
/// a percent sign is a fraction; fractions are rounded down, and where they sum to 1 the last split
/// takes the remainder. `unit` names the samples in messages.
/// Throws: Error(kUsage) for another text, also for counts that look like percentages; Error(kData)
/// for more samples than there are, and for an empty split.
[[nodiscard]] SplitCounts parse_split(std::string_view text, std::int64_t samples,
                                      std::string_view unit = "samples");
/// Whether a text that parse_split() understands gives counts, not fractions.
[[nodiscard]] inline bool gives_counts(std::string_view text) {
  return text.find_first_of(".%") == std::string_view::npos;
}

}  // namespace strata::io
