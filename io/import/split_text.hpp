#pragma once

#include <cstdint>
#include <string_view>

namespace strata::io {

/// Numbers of samples in the splits of a data set, in file order.
struct SplitCounts {
  std::int64_t train = 0;
  std::int64_t test = 0;
};

/// The counts that a text such as "8000,2000", "0.9,0.1" or "1.0" asks for. A number with a point
/// is a fraction; fractions are rounded down, and the last one takes what is left where they add up
/// to 1. `unit` names the samples in messages.
/// Throws: Error(kUsage) for a text that is none of these; Error(kData) for more samples than there
/// are, or for a split without samples.
[[nodiscard]] SplitCounts parse_split(std::string_view text, std::int64_t samples,
                                      std::string_view unit = "samples");

}  // namespace strata::io
