#pragma once

#include <optional>
#include <string_view>

namespace strata::io {

/// Whether the tables that replace characters before a model of SentencePiece encodes text refer to
/// nothing outside of themselves. The library follows them without a check.
[[nodiscard]] bool character_maps_are_sound(std::string_view model);
/// The same of one such table, which is a precompiled_charsmap of a tokenizer.json. An empty one
/// is.
[[nodiscard]] bool character_map_is_sound(std::string_view map);

/// What the shortest entry of a sound map that `text` begins with becomes; nothing without one.
[[nodiscard]] std::optional<std::string_view> replacement_in(std::string_view map,
                                                             std::string_view text);

}  // namespace strata::io
