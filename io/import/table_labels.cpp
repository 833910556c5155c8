#include "import/table_labels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/table.hpp"

namespace strata::io {
namespace {

// Bounds the memory for class names; more names than this are not classes.
constexpr std::size_t kMostClassNames = 100000;
constexpr std::size_t kLongestLabel = 1000;

struct LabelNumber {
  double value = 0;
  std::optional<std::int64_t> whole;  // of 2, 2.0 and 2e0
};

std::optional<LabelNumber> number_in(std::string_view text) {
  constexpr double kMostWhole = std::int64_t{1} << 53;
  LabelNumber number;
  std::int64_t whole = 0;
  if (parse_int64(text, whole)) {
    number = {static_cast<double>(whole), whole};
  } else if (!parse_double(text, number.value)) {
    return std::nullopt;
  } else if (std::abs(number.value) <= kMostWhole && std::trunc(number.value) == number.value) {
    number.whole = static_cast<std::int64_t>(number.value);
  }
  return number;
}

}  // namespace

TableLabels::TableLabels(const ImportOptions& options)
    : column_(options.table.label), task_(options.task), asked_(options.classes) {}

void TableLabels::add(std::string_view label, const TableReader& reader) {
  const auto label_text = [&] {
    return fmt::format("{}:{}: the label '{}'", reader.path().string(), reader.line(), label);
  };
  if (label.size() > kLongestLabel) {
    fail(ExitCode::kData, "{}:{}: the label has {} bytes, at most {} are allowed",
         reader.path().string(), reader.line(), label.size(), kLongestLabel);
  }
  if (is_missing(label)) {
    fail(ExitCode::kData,
         "{} is missing; fill it in, or leave such rows out with --missing=drop, mean or median",
         label_text());
  }
  if (const std::string problem = name_problem(label); !problem.empty()) {
    fail(ExitCode::kData, "{} {}; correct it, or convert the file to UTF-8", label_text(), problem);
  }
  const std::optional<LabelNumber> number = number_in(label);
  if (number) {
    if (!std::isfinite(number->value)) {
      fail(ExitCode::kData, "{} is not finite; correct it or leave the row out", label_text());
    }
  }
  if (std::string& first = number ? first_number_ : first_text_; first.empty()) {
    first = label_text();
  }
  const bool whole = number && number->whole;
  all_whole_ = all_whole_ && whole;
  if (all_whole_) {
    counts_.add(*number->whole);
  }
  all_class_numbers_ = all_class_numbers_ && whole && *number->whole >= 0;
  if (task_ != TaskChoice::kValues && names_.size() <= kMostClassNames) {
    auto found = names_.find(label);
    if (found == names_.end()) {
      found = names_.emplace(label, static_cast<std::int32_t>(names_.size())).first;
    }
    rows_names_.push_back(found->second);
  }
  ++rows_;
}

Task TableLabels::task_of(std::vector<std::string>& notes) const {
  const bool has_text = !first_text_.empty();
  if (task_ == TaskChoice::kValues) {
    if (has_text) {
      fail(ExitCode::kData, "{} is not a number, which --task=values needs", first_text_);
    }
    return Task::kRegression;
  }
  if (task_ != TaskChoice::kAuto || asked_ > 0) {
    return Task::kClassification;
  }
  if (has_text && !first_number_.empty()) {
    fail(ExitCode::kData,
         "{} is text but {} is a number; correct one, or give --task=classes to take all as names",
         first_text_, first_number_);
  }
  const std::string column = fmt::format("column '{}'", column_);
  if (!has_text && all_whole_) {
    const bool classes = counts_.are_classes();
    if (!classes || counts_.are_many()) {
      notes.push_back(classes ? counts_.classes_note(column) : counts_.values_note(column));
    }
    return classes ? Task::kClassification : Task::kRegression;
  }
  return has_text ? Task::kClassification : Task::kRegression;
}

void TableLabels::decide(DatasetInfo& info, std::vector<std::string>& notes) {
  info.task = task_of(notes);
  if (info.task == Task::kRegression) {
    info.target_shape = Shape{1};
    info.target_dtype = DType::kFloat64;
    return;
  }
  if (!all_class_numbers_ || (asked_ == 0 && !counts_.has_few_gaps())) {
    name_classes(info);
  }
  number_rows();
}

// Among numbers, 1 and 1.0 are one class.
std::string TableLabels::class_name(std::string_view label) const {
  const std::optional<LabelNumber> number =
      kind_ == Labels::kNumbers ? number_in(label) : std::nullopt;
  return !number         ? std::string(label)
         : number->whole ? std::to_string(*number->whole)
                         : fmt::format("{}", number->value);
}

void TableLabels::name_classes(DatasetInfo& info) {
  kind_ = first_text_.empty() ? Labels::kNumbers : Labels::kTexts;
  if (names_.size() > kMostClassNames) {
    fail(ExitCode::kData,
         "the column '{}' has more than {} different labels, too many for classes; for values use "
         "--task=values",
         column_, kMostClassNames);
  }
  std::set<std::string> names;
  std::ranges::transform(names_, std::inserter(names, names.end()),
                         [&](const auto& entry) { return class_name(entry.first); });
  const std::int64_t count = std::ssize(names);
  if (asked_ > 0 && count > asked_) {
    fail(ExitCode::kData, "the column '{}' has {} different labels, --classes allows {}", column_,
         count, asked_);
  }
  info.class_names.assign(names.begin(), names.end());
  is_named_ = true;
  for (std::int64_t i = 0; i < count; ++i) {
    classes_by_name_.emplace(info.class_names[static_cast<std::size_t>(i)], i);
  }
}

/// The class of each row, for the splits.
void TableLabels::number_rows() {
  if (std::ssize(rows_names_) != rows_) {
    rows_names_.clear();
    return;
  }
  std::vector<std::int32_t> classes(names_.size());
  for (const auto& [name, number] : names_) {
    const std::int64_t label = is_named_
                                   ? classes_by_name_.at(class_name(name))
                                   : number_in(name).value_or(LabelNumber()).whole.value_or(0);
    // One that is out of range is refused when it is imported.
    classes[static_cast<std::size_t>(number)] =
        static_cast<std::int32_t>(label < kMostClasses ? label : 0);
  }
  for (std::int32_t& label : rows_names_) {
    label = classes[static_cast<std::size_t>(label)];
  }
}

double TableLabels::value_of(std::string_view text, const TableReader& reader) const {
  double value = 0;
  const char* problem = nullptr;
  if (!parse_double(text, value)) {
    problem = "is not a number";
  } else if (!std::isfinite(value)) {
    problem = "is too large for a 64-bit floating-point number";
  }
  if (problem != nullptr) {
    fail(ExitCode::kData, "{}:{}: column '{}': '{}' {}", reader.path().string(), reader.line(),
         column_, text, problem);
  }
  return value;
}

std::int64_t TableLabels::class_of(std::string_view label, const TableReader& reader) const {
  std::int64_t number = -1;
  if (!is_named_) {
    number = number_in(label).value_or(LabelNumber()).whole.value_or(-1);
  } else if (const auto found = classes_by_name_.find(class_name(label));
             found != classes_by_name_.end()) {
    number = found->second;
  }
  if (number < 0) {
    fail(ExitCode::kData,
         "{}:{}: the label '{}' is new since the first pass; do not change the file during an "
         "import",
         reader.path().string(), reader.line(), label);
  }
  if (asked_ == 0 && number >= kMostClasses) {
    fail(ExitCode::kData,
         "{}:{}: column '{}': the label {} is too large for a class number, which may be up to {}; "
         "for values use --task=values",
         reader.path().string(), reader.line(), column_, number, kMostClasses - 1);
  }
  if (asked_ > 0 && number >= asked_) {
    fail(ExitCode::kData,
         "{}:{}: column '{}': the label {} is out of range, expected 0 to {} for {} "
         "classes",
         reader.path().string(), reader.line(), column_, label, asked_ - 1, asked_);
  }
  return number;
}

void TableLabels::encode(std::string_view label, const TableReader& reader, Task task,
                         std::byte* target) const {
  if (task == Task::kRegression) {
    const double value = value_of(label, reader);
    std::memcpy(target, &value, sizeof value);
  } else {
    const std::int64_t value = class_of(label, reader);
    std::memcpy(target, &value, sizeof value);
  }
}

}  // namespace strata::io
