#pragma once

#include <optional>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace strata::io {

/// Parses a document from a file; nothing where it is not JSON or is nested more than 64 deep,
/// which recursion over it would not survive.
[[nodiscard]] std::optional<nlohmann::json> parse_json(std::string_view text);

}  // namespace strata::io
