#include "import/table_columns.hpp"

#include <algorithm>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/table.hpp"

namespace strata::io {
namespace {

// More names are rarely a feature, as of passengers or tickets; and with the option, a bound on
// the memory.
constexpr std::size_t kMostCategories = 100;
constexpr std::size_t kMostWanted = 10000;
constexpr std::size_t kLongestCategory = 1000;

std::string place_of(const TableReader& reader, const std::string& column, std::string_view field) {
  constexpr std::size_t kShown = 200;
  return fmt::format("{}:{}: column '{}': '{}'", reader.path().string(), reader.line(), column,
                     field.substr(0, kShown));
}

bool is_number_with_comma(std::string_view field) {
  std::string text(field);
  double value = 0;
  std::ranges::replace(text, ',', '.');
  return text != field && parse_double(text, value);
}

}  // namespace

ColumnFacts::ColumnFacts(std::string name, const TableOptions& options)
    : name_(std::move(name)),
      missing_(options.missing),
      is_named_(std::ranges::find(options.categories, name_) != options.categories.end()) {}

void ColumnFacts::add(std::string_view field, const TableReader& reader) {
  ++rows_;
  if (is_missing(field)) {
    if (first_missing_.empty()) {
      first_missing_ = place_of(reader, name_, field);
    }
    return;
  }
  double value = 0;
  if (!is_named_ && parse_double(field, value)) {
    if (first_number_.empty()) {
      first_number_ = place_of(reader, name_, field);
    }
    ++numbers_;
    sum_ += value;
    if (missing_ == Missing::kMedian) {
      values_.push_back(static_cast<float>(value));
    }
    return;
  }
  if (first_text_.empty()) {
    first_text_ = place_of(reader, name_, field);
    has_decimal_comma_ = is_number_with_comma(field);
  }
  if (names_.size() <= kMostWanted && !names_.contains(field)) {
    const std::string problem = field.size() > kLongestCategory
                                    ? fmt::format("has {} bytes, at most {} are allowed in a name",
                                                  field.size(), kLongestCategory)
                                    : name_problem(field);
    if (!problem.empty()) {
      fail(ExitCode::kData, "{} {}; correct it, or leave the column out with --ignore={}",
           place_of(reader, name_, field), problem, name_);
    }
    names_.emplace(field);
  }
}

void ColumnFacts::check_names() const {
  if (numbers_ > 0) {
    fail(
        ExitCode::kData,
        "{} is not a number, but {} is; correct it, leave the column out with --ignore={}, or take "
        "all its fields as names with --categories={}",
        first_text_, first_number_.substr(first_number_.rfind(": ") + 2), name_, name_);
  }
  if (has_decimal_comma_) {
    fail(ExitCode::kData,
         "{} is not a number: write a decimal point, or leave the column out with --ignore={}",
         first_text_, name_);
  }
  const std::size_t most = is_named_ ? kMostWanted : kMostCategories;
  if (names_.size() > most) {
    fail(ExitCode::kData, "{}: the column '{}' has {}{} different texts in {} rows, {}",
         first_text_.substr(0, first_text_.find(": ")), name_,
         names_.size() > kMostWanted ? "more than " : "",
         count_text(std::min(std::ssize(names_), static_cast<std::ptrdiff_t>(kMostWanted))),
         count_text(rows_),
         is_named_ ? fmt::format("too many for categories; leave it out with --ignore={}", name_)
                   : fmt::format("which makes as many inputs; leave it out with --ignore={}, or "
                                 "give --categories={} to take them all",
                                 name_, name_));
  }
}

TableColumn ColumnFacts::column() {
  TableColumn column{name_, {}};
  if (!first_missing_.empty() && missing_ == Missing::kRefuse) {
    fail(
        ExitCode::kData,
        "{} is missing; fill it in, or give --missing=mean or median, --missing=drop to leave such "
        "rows out, or --ignore={}",
        first_missing_, name_);
  }
  if (!first_text_.empty()) {
    check_names();
    column.categories.assign(names_.begin(), names_.end());
    if (!first_missing_.empty() && missing_ != Missing::kDrop) {
      column.categories.insert(column.categories.begin(), "");
    }
    return column;
  }
  if (numbers_ == 0) {
    fail(ExitCode::kData, "the column '{}' has no values; leave it out with --ignore={}", name_,
         name_);
  }
  if (missing_ == Missing::kMean && !first_missing_.empty()) {
    column.missing = sum_ / static_cast<double>(numbers_);
  } else if (missing_ == Missing::kMedian && !first_missing_.empty()) {
    const auto middle = values_.begin() + static_cast<std::ptrdiff_t>(values_.size() / 2);
    std::nth_element(values_.begin(), middle, values_.end());
    column.missing = double{*middle};
    if (values_.size() % 2 == 0) {
      column.missing = (column.missing + double{*std::max_element(values_.begin(), middle)}) / 2;
    }
  }
  values_ = {};
  return column;
}

}  // namespace strata::io
