#include "commands/watching/loss_curve.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "strata/core/utf8.hpp"

#include "drawing/svg.hpp"

namespace strata::app {

std::vector<std::string> loss_curve(std::span<const double> steps, std::span<const double> values,
                                    std::size_t columns, std::size_t rows, Characters characters) {
  // Source: The Unicode Standard, Braille Patterns, U+2800: the bit of each dot.
  constexpr char32_t kNoDots = 0x2800;
  constexpr char32_t kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  const bool braille = characters == Characters::kUnicode;
  const std::size_t across = braille ? 2 : 1;
  const std::size_t down = braille ? 4 : 1;
  std::vector<char32_t> cells(columns * rows, braille ? kNoDots : U' ');
  Range range;
  for (const double value : values) {
    range.add(value);
  }
  const auto row_of = [&](double value) {  // of dots, from the top
    const double share =
        range.is_drawable() ? (range.most - value) / (range.most - range.least) : 0.0;
    return static_cast<std::size_t>(std::llround(share * static_cast<double>(rows * down - 1)));
  };
  // The first value after the steps that lie left of a column.
  const auto first_in = [&](std::size_t column) {
    const double share = static_cast<double>(column) / static_cast<double>(columns * across);
    const double left = steps.front() - 1.0 + share * (steps.back() - steps.front() + 1.0);
    return static_cast<std::size_t>(std::ranges::upper_bound(steps, left) - steps.begin());
  };
  std::optional<std::size_t> before;  // the row of the last value, unless a gap follows it
  for (std::size_t x = 0; x < columns * across; ++x) {
    const std::size_t begin = std::min(first_in(x), values.size() - 1);
    const std::size_t end = std::clamp(first_in(x + 1), begin + 1, values.size());
    std::optional<std::size_t> last;
    std::size_t top = rows * down;
    std::size_t bottom = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (std::isfinite(values[i])) {
        last = row_of(values[i]);
        top = std::min(top, *last);
        bottom = std::max(bottom, *last);
      }
    }
    if (last && before && braille) {  // joins the column to the one before
      top = *before < top ? *before + 1 : top;
      bottom = *before > bottom ? *before - 1 : bottom;
    }
    for (std::size_t y = std::min(top, bottom); last && y <= bottom; ++y) {
      char32_t& cell = cells[y / down * columns + x / across];
      cell = braille ? cell | kDots[y % down][x % across] : U'*';
    }
    before = last;
  }
  std::vector<std::string> lines;
  for (std::size_t row = 0; row < rows; ++row) {
    const bool labelled = row == 0 || row + 1 == rows;
    lines.push_back(fmt::format(
        "{:>8} {}", labelled ? fmt::format("{:.4g}", row == 0 ? range.most : range.least) : "",
        braille ? "\u2502" : "|"));
    for (std::size_t column = 0; column < columns; ++column) {
      append_utf8(cells[row * columns + column], lines.back());
    }
  }
  return lines;
}

}  // namespace strata::app
