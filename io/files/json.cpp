#include "strata/io/json.hpp"

#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace strata::io {

std::optional<nlohmann::json> parse_json(std::string_view text, RepeatedKeys repeated) {
  using Event = nlohmann::json::parse_event_t;
  constexpr int kMostDepth = 64;
  bool refused = false;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto keep = [&](int depth, Event event, nlohmann::json& parsed) {
    refused = refused || depth > kMostDepth;
    if (repeated == RepeatedKeys::kRefused && !refused) {
      if (event == Event::object_start) {
        keys.emplace_back();
      } else if (event == Event::object_end) {
        keys.pop_back();
      } else if (event == Event::key) {
        refused = !keys.back().insert(parsed.get<std::string>()).second;
      }
    }
    return !refused;
  };
  nlohmann::json parsed = nlohmann::json::parse(text, keep, false);
  if (refused || parsed.is_discarded()) {
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
