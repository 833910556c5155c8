#pragma once

namespace strata::ops {

/// What a norm measures a row's elements from: layer norm from the row's mean, RMS norm from zero.
enum class Center { kMean, kZero };

}  // namespace strata::ops
