#include "dataset/dataset_names.hpp"

#include <algorithm>
#include <map>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

namespace strata::io {
namespace {

std::map<std::string_view, std::int64_t> numbers_of(std::span<const std::string> names) {
  std::map<std::string_view, std::int64_t> numbers;
  for (std::size_t i = 0; i < names.size(); ++i) {
    numbers.emplace(names[i], static_cast<std::int64_t>(i));
  }
  return numbers;
}

/// All but the last, which is the label's.
std::span<const std::string> input_columns(const DatasetInfo& info) {
  return std::span(info.column_names).first(info.column_names.size() - 1);
}

bool is_number(const std::string& name) {
  std::int64_t number = 0;
  return parse_int64(name, number);
}

}  // namespace

std::vector<std::int64_t> places_of(const Columns& some, const Columns& all, std::string_view what,
                                    std::string_view advice) {
  const std::map<std::string_view, std::int64_t> numbers = numbers_of(all.names);
  std::vector<std::int64_t> places;
  for (const std::string& name : some.names) {
    const auto found = numbers.find(name);
    if (found == numbers.end()) {
      fail(ExitCode::kData, "{} has the {} '{}', which {} lacks; {}", some.file, what, name,
           all.file, advice);
    }
    places.push_back(found->second);
  }
  return places;
}

std::vector<std::int64_t> matched_columns(const DatasetInfo& info, const DatasetInfo& model,
                                          std::string_view advice) {
  if (info.column_names.empty() || model.column_names.empty()) {
    return {};
  }
  const Columns ours{info.path.string(), input_columns(info)};
  const Columns theirs{model.path.string(), input_columns(model)};
  static_cast<void>(places_of(ours, theirs, "input column", advice));
  std::vector<std::int64_t> places = places_of(theirs, ours, "input column", advice);
  // Names of classes say what a label means, whatever its column is called.
  const bool named = !info.class_names.empty() && !model.class_names.empty();
  if (!named && info.column_names.back() != model.column_names.back()) {
    fail(ExitCode::kData, "the label of {} is the column '{}', that of {} is '{}'; {}",
         info.path.string(), info.column_names.back(), model.path.string(),
         model.column_names.back(), advice);
  }
  return places;
}

std::vector<std::int64_t> matched_classes(const DatasetInfo& info, const DatasetInfo& model) {
  const std::vector<std::string>& ours = info.class_names;
  const std::vector<std::string>& theirs = model.class_names;
  // Earlier versions imported names that are not UTF-8; checkpoints hold them changed.
  const bool known =
      std::ranges::all_of(ours, [](const std::string& name) { return name_problem(name).empty(); });
  const bool numbers =
      std::ranges::any_of(ours, is_number) || std::ranges::any_of(theirs, is_number);
  if (info.task != Task::kClassification || ours == theirs || !known ||
      ((ours.empty() || theirs.empty()) && !numbers)) {
    return {};
  }
  const std::map<std::string_view, std::int64_t> named = numbers_of(theirs);
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < info.classes; ++i) {
    const std::string name = class_text(ours, i);
    std::int64_t number = -1;
    if (!theirs.empty()) {
      const auto found = named.find(name);
      number = found == named.end() ? -1 : found->second;
    } else if (!parse_int64(name, number)) {
      number = -1;
    }
    classes.push_back(number < model.classes ? std::max<std::int64_t>(number, -1) : -1);
  }
  return classes;
}

}  // namespace strata::io
