#include "strata/core/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "strata/core/familiar_names.hpp"
#include "strata/core/utf8.hpp"

namespace strata {

std::int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::int64_t diagonal = row[0];
    row[0] = static_cast<std::int64_t>(i) + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::int64_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j + 1] + 1, row[j] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view text, std::span<const std::string> candidates) {
  if (const auto meant = meant_by(text, candidates)) {
    return meant->name;
  }
  constexpr std::size_t kMostCompared = 256;
  text = text.substr(0, kMostCompared);
  const bool is_part = text.find('.') == std::string_view::npos;
  std::string best;
  std::int64_t best_distance = std::numeric_limits<std::int64_t>::max();
  for (const std::string& candidate : candidates) {
    std::int64_t distance = edit_distance(text, candidate);
    if (const std::size_t dot = candidate.rfind('.'); is_part && dot != std::string::npos) {
      distance = std::min(distance, edit_distance(text, candidate.substr(dot + 1)));
    }
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string bytes_text(std::int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string number_text(double value, int digits) {
  const double size = std::abs(value);
  return size == 0.0 || (size >= 1e-3 && size < 1e6) ? fmt::format("{:.{}f}", value, digits)
                                                     : fmt::format("{:.{}g}", value, digits);
}

std::string duration_text(double seconds) {
  constexpr double kMost = 1e15;
  if (!(seconds < kMost)) {
    return fmt::format("{:.3g} s", seconds);
  }
  if (seconds < 60.0) {
    return fmt::format("{:.1f} s", seconds);
  }
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) {
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  constexpr std::int64_t kHours = 3600;
  if (whole < 48 * kHours) {
    return fmt::format("{} h {:02} min", whole / kHours, whole % kHours / 60);
  }
  const std::int64_t hours = (whole + kHours / 2) / kHours;
  return fmt::format("{} d {} h", hours / 24, hours % 24);
}

std::string count_text(std::int64_t count) {
  std::string text = std::to_string(count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t position = text.size(); position > first + 3;) {
    position -= 3;
    text.insert(position, ",");
  }
  return text;
}

std::vector<std::string> split_words(std::string_view text, std::string_view separators) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    const std::string_view word = trimmed(text.substr(begin, end - begin));
    if (!word.empty()) {
      words.emplace_back(word);
    }
    begin = end + 1;
  }
  return words;
}

std::string_view trimmed(std::string_view text) {
  static constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

bool parse_int64(std::string_view text, std::int64_t& value) {
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc() && end == text.data() + text.size();
}

bool parse_double(std::string_view text, double& value) {
  if (!text.empty() && text.front() == '+') {
    text.remove_prefix(1);
  }
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status == std::errc::result_out_of_range) {
    value = std::strtod(std::string(text).c_str(), nullptr);
  } else if (status != std::errc()) {
    return false;
  }
  return end == text.data() + text.size();
}

std::string table_text(const std::vector<std::vector<std::string>>& cells) {
  if (cells.empty()) {
    return {};
  }
  constexpr std::size_t kLongestCell = 400;
  std::vector<std::vector<std::string>> rows = cells;
  for (std::vector<std::string>& row : rows) {
    std::transform(row.begin(), row.end(), row.begin(),
                   [](const std::string& cell) { return printable(cell, kLongestCell); });
  }
  std::vector<std::size_t> widths(rows.front().size(), 0);
  std::vector<bool> numeric(rows.front().size(), true);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < widths.size() && c < rows[r].size(); ++c) {
      widths[c] = std::max(widths[c], rows[r][c].size());
      numeric[c] = numeric[c] &&
                   (r == 0 || rows[r][c].find_first_not_of("0123456789.,-+%") == std::string::npos);
    }
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t c = 0; c < widths.size() && c < rows[r].size(); ++c) {
      line += c == 0 ? "" : "  ";
      line += numeric[c] ? fmt::format("{:>{}}", rows[r][c], widths[c])
                         : fmt::format("{:<{}}", rows[r][c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r == 0) {
      const std::size_t total = std::accumulate(widths.begin(), widths.end(), std::size_t{0});
      text += std::string(total + 2 * (widths.size() - 1), '-') + "\n";
    }
  }
  return text;
}

}  // namespace strata
