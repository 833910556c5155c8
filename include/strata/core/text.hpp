#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/enum_names.hpp"

namespace strata {

/// All names of an enum joined by `separator`, for help and error texts.
template <typename Enum>
[[nodiscard]] std::string joined_names(std::string_view separator = ", ") {
  std::string joined;
  for (const auto& [enumerator, name] : enum_table<Enum>()) {
    joined += joined.empty() ? "" : separator;
    joined += name;
  }
  return joined;
}

/// Edits (insertions, deletions, replacements) that turn one text into the other.
/// Source: V. I. Levenshtein, "Binary codes capable of correcting deletions, insertions, and
/// reversals", 1966.
[[nodiscard]] std::int64_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that `text` means (familiar_names.hpp), else the one with the fewest edits from
/// it, or, where the text has no '.', from its last part; empty where there is no candidate.
[[nodiscard]] std::string nearest(std::string_view text, std::span<const std::string> candidates);

/// A byte count for people, as in "1.25 MiB".
[[nodiscard]] std::string bytes_text(std::int64_t bytes);

/// A number for people: so many digits after the point, as in "0.1234", or, of a size where they
/// say little, so many in all, as in "2e+59".
[[nodiscard]] std::string number_text(double value, int digits = 4);

/// A duration for people, as in "3 d 4 h", "2 h 05 min", "3 min 20 s" or "4.2 s".
[[nodiscard]] std::string duration_text(double seconds);

/// A count with thousands separated, as in "101,770".
[[nodiscard]] std::string count_text(std::int64_t count);

/// The pieces between separators, blank ones dropped, white space trimmed.
[[nodiscard]] std::vector<std::string> split_words(std::string_view text,
                                                   std::string_view separators = " \t");

/// Text without white space at either end.
[[nodiscard]] std::string_view trimmed(std::string_view text);

/// The whole text as a number; nothing where any of it is not. A double is rounded: 1e-400 is 0,
/// 1e400 infinity.
[[nodiscard]] bool parse_int64(std::string_view text, std::int64_t& value);
[[nodiscard]] bool parse_double(std::string_view text, double& value);

/// Rows of cells, printable() each, in aligned columns; the first row is underlined. Columns that
/// hold only numbers align right.
[[nodiscard]] std::string table_text(const std::vector<std::vector<std::string>>& cells);

}  // namespace strata
