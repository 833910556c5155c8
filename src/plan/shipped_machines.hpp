#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace strata::plan {

/// Name and text of each of src/plan/machines/*.ini, ascending by name; CMake writes the function.
[[nodiscard]] std::span<const std::pair<std::string_view, std::string_view>> shipped_texts();

}  // namespace strata::plan
