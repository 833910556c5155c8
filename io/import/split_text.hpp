#pragma once

#include <cstdint>
#include <string_view>

namespace strata::io {

/// Sizes of the splits of a data set, in file order.
struct SplitCounts {
  std::int64_t train = 0;
  std::int64_t test = 0;
};

/// Parses split sizes such as "8000,2000", "0.9,0.1" or "1.0". A number with a point is a fraction;
/// fractions are rounded down, and where they sum to 1 the last split takes the remainder. `unit`
/// names the samples in messages.
/// Throws: Error(kUsage) for another text; Error(kData) for more samples than there are, and for an
/// empty split.
[[nodiscard]] SplitCounts parse_split(std::string_view text, std::int64_t samples,
                                      std::string_view unit = "samples");

}  // namespace strata::io
