#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace strata::app {

/// What a terminal can show.
enum class Characters { kAscii, kUnicode };

/// Values by step as rows of characters, with the greatest and the least value on the left; a
/// column is a line from its least to its greatest value. Braille characters hold 2 x 4 dots.
/// `columns`: without the labels, which take kLossLabel more. Pre: steps ascend, as many as values,
/// of which one is finite.
[[nodiscard]] std::vector<std::string> loss_curve(std::span<const double> steps,
                                                  std::span<const double> values,
                                                  std::size_t columns, std::size_t rows,
                                                  Characters characters);
constexpr std::size_t kLossLabel = 10;

}  // namespace strata::app
