#include "strata/io/json.hpp"

#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

namespace strata::io {

std::optional<nlohmann::json> parse_json(std::string_view text) {
  constexpr int kMostDepth = 64;
  bool too_deep = false;
  const auto keep = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kMostDepth;
    return !too_deep;
  };
  nlohmann::json parsed = nlohmann::json::parse(text, keep, false);
  if (too_deep || parsed.is_discarded()) {
    return std::nullopt;
  }
  return parsed;
}

std::optional<std::int64_t> integer_in(const nlohmann::json& value) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<std::int64_t>(value.get<std::uint64_t>())
                        : value.is_number_integer();
  return fits ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

std::int64_t integer_of(const nlohmann::json& value) {
  const std::optional<std::int64_t> integer = integer_in(value);
  if (!integer) {
    throw std::out_of_range(value.dump() + " is no whole number of 64 bits");
  }
  return *integer;
}

}  // namespace strata::io
