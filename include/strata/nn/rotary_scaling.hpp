#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "strata/ops/rotary.hpp"

namespace strata::nn {

/// What a config may write. FACTOR is from 1, 0 < LOW < HIGH, CONTEXT is whole, SHORT and LONG are
/// a number above 0 for each pair of elements that turns, with commas.
inline constexpr std::string_view kRotaryScalings =
    "none, linear:FACTOR, llama3:FACTOR:LOW:HIGH:CONTEXT, "
    "yarn:FACTOR:CONTEXT[:HIGH:LOW[:ATTENTION_FACTOR]], "
    "longrope:FACTOR:CONTEXT:SHORT:LONG[:ATTENTION_FACTOR]";

/// Reads a text of kRotaryScalings; nothing where it is another.
[[nodiscard]] std::optional<ops::RotaryScaling> parse_rotary_scaling(std::string_view text);

/// The text that parse_rotary_scaling() reads.
[[nodiscard]] std::string text_of(const ops::RotaryScaling& scaling);

}  // namespace strata::nn
