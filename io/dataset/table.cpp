#include "strata/io/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "strata/core/text.hpp"

namespace strata::io {
namespace {

/// Returns what is wrong with a number.
std::string number_in(std::string_view field, double missing, double& value) {
  if (is_missing(field)) {
    value = missing;
    return std::isnan(missing) ? (field.empty() ? "is empty, a number was expected"
                                                : "is missing, a number was expected")
                               : "";
  }
  if (!parse_double(field, value) || std::isnan(value)) {
    return "is not a number";
  }
  if (std::isinf(value) && field.find_first_of("0123456789") == std::string_view::npos) {
    return "is infinite";
  }
  return std::abs(value) > double{std::numeric_limits<float>::max()}
             ? "is too large for a 32-bit floating-point number"
             : "";
}

}  // namespace

bool is_missing(std::string_view field) {
  constexpr std::array<std::string_view, 5> kWords{"na", "n/a", "nan", "null", "?"};
  constexpr std::size_t kLongest = 4;
  if (field.empty()) {
    return true;
  }
  if (field.size() > kLongest) {
    return false;
  }
  std::string lower(field);
  std::ranges::transform(lower, lower.begin(), [](char character) {
    return character >= 'A' && character <= 'Z' ? static_cast<char>(character - 'A' + 'a')
                                                : character;
  });
  return std::ranges::find(kWords, lower) != kWords.end();
}

std::string encode_field(const TableColumn& column, std::string_view field,
                         std::span<float> inputs) {
  if (column.categories.empty()) {
    double value = 0;
    std::string problem = number_in(field, column.missing, value);
    inputs[0] = problem.empty() ? static_cast<float>(value) : 0.0F;
    return problem;
  }
  std::ranges::fill(inputs, 0.0F);
  const std::string_view name = is_missing(field) ? "" : field;
  const auto found = std::ranges::lower_bound(column.categories, name);
  if (found == column.categories.end() || *found != name) {
    return name.empty() ? "is missing, a name was expected"
                        : "is none of the names that the column has in the training data";
  }
  inputs[static_cast<std::size_t>(found - column.categories.begin())] = 1.0F;
  return "";
}

}  // namespace strata::io
