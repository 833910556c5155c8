#pragma once

#include <string_view>

namespace strata::io {

/// Whether the tables that replace characters before a model of SentencePiece encodes text refer to
/// nothing outside of themselves. The library follows them without a check.
[[nodiscard]] bool character_maps_are_sound(std::string_view model);

}  // namespace strata::io
