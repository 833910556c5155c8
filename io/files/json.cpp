#include "files/json.hpp"

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

}  // namespace strata::io
