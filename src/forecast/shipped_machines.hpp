#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace strata::forecast {

/// Name and text of each of src/forecast/machines/*.ini, ascending by name; CMake writes the
/// function.
[[nodiscard]] std::span<const std::pair<std::string_view, std::string_view>> shipped_texts();

}  // namespace strata::forecast
