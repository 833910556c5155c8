#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace strata::io {

/// What an object that has a key twice is.
enum class RepeatedKeys { kLastCounts, kRefused };

/// Parses a document from a file; nothing where it is not JSON or is nested more than 64 deep,
/// which recursion over it would not survive.
[[nodiscard]] std::optional<nlohmann::json> parse_json(
    std::string_view text, RepeatedKeys repeated = RepeatedKeys::kLastCounts);

/// A text in an object, without the rest of it; nothing where parse_json() has to tell what is
/// there: no such text, no object, or one that is rare. It is several times as fast.
[[nodiscard]] std::optional<std::string> text_member(std::string_view object,
                                                     std::string_view name);

/// A whole number of 64 bits; nothing where the value is another.
[[nodiscard]] std::optional<std::int64_t> integer_in(const nlohmann::json& value);

/// Throws: std::out_of_range where the value is no whole number of 64 bits. (nlohmann's conversion
/// of large floating-point numbers is undefined.)
[[nodiscard]] std::int64_t integer_of(const nlohmann::json& value);

}  // namespace strata::io
