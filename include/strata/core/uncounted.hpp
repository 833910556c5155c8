#pragma once

#include <cstdint>

namespace strata {

/// A target that counts nowhere: its row has neither a loss nor a gradient.
inline constexpr std::int64_t kUncounted = -1;

}  // namespace strata
