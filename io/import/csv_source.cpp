#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

#include "dataset/dataset_names.hpp"
#include "files/csv_reader.hpp"
#include "import/input_files.hpp"
#include "import/sample_source.hpp"

namespace strata::io {
namespace {

// Bounds the memory for class names; more names than this are not classes.
constexpr std::size_t kMostNames = 100000;
constexpr std::size_t kLongestName = 1000;

// Facts about the labels of all files, collected in one pass.
struct LabelFacts {
  std::int64_t rows = 0;
  std::string first_text;  // "file:line: the label 'x'"
  std::string first_number;
  bool all_class_numbers = true;  // whole numbers from 0
  bool all_whole = true;
  std::set<std::string, std::less<>> names;  // as they stand in the files
};

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

class CsvSource final : public SampleSource {
 public:
  explicit CsvSource(const ImportOptions& options);

  void next(std::int64_t count, SampleBatch& batch) override;
  void finish() override {}  // the first pass reads every file to its end

 private:
  void check_header(const CsvReader& reader) const;
  void find_columns(const CsvReader& reader);
  [[nodiscard]] std::string_view field(const CsvReader& reader, std::size_t column) const {
    return reader.fields()[places_[column]];
  }
  /// Without the NULs that pad it, as in a column of fixed width.
  [[nodiscard]] std::string_view label_of(const CsvReader& reader) const {
    const std::string_view text = field(reader, label_);
    return text.substr(0, text.find_last_not_of('\0') + 1);
  }
  void note_label(const CsvReader& reader, LabelFacts& facts) const;
  [[nodiscard]] LabelFacts scan();
  [[nodiscard]] Task task_of(const LabelFacts& facts) const;
  void name_classes(const LabelFacts& facts);
  [[nodiscard]] std::string class_name(std::string_view label) const;
  [[nodiscard]] double number(const CsvReader& reader, std::size_t column) const;
  [[nodiscard]] std::int64_t class_of(const CsvReader& reader) const;
  void read_row(const CsvReader& reader, std::byte* inputs, std::byte* target) const;

  ImportOptions options_;
  std::vector<std::string> header_;  // of the first file
  std::vector<std::size_t> places_;  // of its columns in the file that is read
  std::size_t label_ = 0;
  enum class Labels { kTexts, kNumbers } labels_ = Labels::kTexts;
  std::map<std::string, std::int64_t, std::less<>> classes_by_name_;
  std::size_t next_file_ = 0;
  std::optional<CsvReader> reader_;
};

CsvSource::CsvSource(const ImportOptions& options) : options_(options) {
  if (options.inputs.empty() || !options.targets.empty()) {
    fail(ExitCode::kUsage, "a CSV import takes one or more files and no separate targets");
  }
  if (options.label.empty()) {
    fail(ExitCode::kUsage, "which column holds the labels? Name it with --label=COLUMN");
  }
  const LabelFacts facts = scan();
  info_.samples = facts.rows;
  if (info_.samples == 0) {
    fail(ExitCode::kData, "{} has no rows below its header", options.inputs.front().string());
  }
  info_.source = joined_file_names(options_.inputs) + ", label " + options_.label;
  info_.input_shape = Shape{static_cast<std::int64_t>(header_.size()) - 1};
  info_.input_dtype = DType::kFloat32;
  info_.task = task_of(facts);
  for (std::size_t column = 0; column < header_.size(); ++column) {
    if (column != label_) {
      info_.column_names.push_back(header_[column]);
    }
  }
  info_.column_names.push_back(options_.label);
  if (info_.task == Task::kRegression) {
    info_.target_shape = Shape{1};
    info_.target_dtype = DType::kFloat64;
  } else if (!facts.all_class_numbers) {
    name_classes(facts);
  }
}

// The names of columns say what numbers mean, so they must differ, and be stored.
void CsvSource::check_header(const CsvReader& reader) const {
  std::set<std::string_view> names;
  std::size_t longest = 0;
  for (const std::string& name : reader.header()) {
    longest = std::max(longest, name.size());
    const auto refuse = [&](const std::string& problem) {
      fail(ExitCode::kData, "{}:{}: the column '{}' {}", reader.path().string(), reader.line(),
           name, problem);
    };
    if (const std::string problem = name_problem(name); !problem.empty()) {
      refuse(problem + "; rename it, or convert the file to UTF-8");
    }
    if (longest > kLongestName || longest * reader.header().size() > kMostNames * kLongestName) {
      refuse(fmt::format("has a name of {} bytes, too many for {} columns; rename it", name.size(),
                         reader.header().size()));
    }
    if (!names.insert(name).second) {
      refuse("is there twice; rename one of them or take it out");
    }
  }
}

void CsvSource::find_columns(const CsvReader& reader) {
  const std::vector<std::string>& header = reader.header();
  const auto found = std::ranges::find(header, options_.label);
  if (found == header.end()) {
    fail(ExitCode::kData, "{} has no column '{}'; did you mean '{}'?", reader.path().string(),
         options_.label, nearest(options_.label, header));
  }
  if (header.size() < 2) {
    fail(ExitCode::kData, "{} has no column besides the label", reader.path().string());
  }
  check_header(reader);
  if (header_.empty()) {
    header_ = header;
    label_ = static_cast<std::size_t>(found - header.begin());
  }
  constexpr const char* kAdvice = "give files of the same columns";
  const Columns first{options_.inputs.front().string(), header_};
  const Columns here{reader.path().string(), header};
  static_cast<void>(places_of(here, first, "column", kAdvice));
  const std::vector<std::int64_t> places = places_of(first, here, "column", kAdvice);
  places_.assign(places.begin(), places.end());
}

void CsvSource::note_label(const CsvReader& reader, LabelFacts& facts) const {
  const std::string_view label = label_of(reader);
  const auto label_text = [&] {
    return fmt::format("{}:{}: the label '{}'", reader.path().string(), reader.line(), label);
  };
  if (label.size() > kLongestName) {
    fail(ExitCode::kData, "{}:{}: the label has {} bytes, at most {} are allowed",
         reader.path().string(), reader.line(), label.size(), kLongestName);
  }
  if (label.empty()) {
    fail(ExitCode::kData, "{} is empty; fill it in or leave the row out", label_text());
  }
  if (const std::string problem = name_problem(label); !problem.empty()) {
    fail(ExitCode::kData, "{} {}; correct it, or convert the file to UTF-8", label_text(), problem);
  }
  ++facts.rows;
  const std::optional<LabelNumber> number = number_in(label);
  if (number) {
    if (!std::isfinite(number->value)) {
      fail(ExitCode::kData, "{} is not finite; correct it or leave the row out", label_text());
    }
    facts.first_number = facts.first_number.empty() ? label_text() : facts.first_number;
  } else {
    facts.first_text = facts.first_text.empty() ? label_text() : facts.first_text;
  }
  const bool whole = number && number->whole;
  facts.all_whole = facts.all_whole && whole;
  facts.all_class_numbers = facts.all_class_numbers && whole && *number->whole >= 0;
  if (options_.task != TaskChoice::kRegression && facts.names.size() <= kMostNames &&
      !facts.names.contains(label)) {
    facts.names.emplace(label);
  }
}

LabelFacts CsvSource::scan() {
  LabelFacts facts;
  for (const std::filesystem::path& path : options_.inputs) {
    CsvReader reader(path);
    find_columns(reader);
    while (reader.next()) {
      note_label(reader, facts);
    }
  }
  return facts;
}

Task CsvSource::task_of(const LabelFacts& facts) const {
  const bool has_text = !facts.first_text.empty();
  if (options_.task == TaskChoice::kRegression) {
    if (has_text) {
      fail(ExitCode::kData, "{} is not a number, which regression needs", facts.first_text);
    }
    return Task::kRegression;
  }
  if (options_.task == TaskChoice::kAuto && options_.classes == 0) {
    if (has_text && !facts.first_number.empty()) {
      fail(ExitCode::kData,
           "{} is text but {} is a number; correct one, or give --task=classification to take all "
           "as names",
           facts.first_text, facts.first_number);
    }
    return has_text || facts.all_whole ? Task::kClassification : Task::kRegression;
  }
  return Task::kClassification;
}

// Among numbers, 1 and 1.0 are one class.
std::string CsvSource::class_name(std::string_view label) const {
  const std::optional<LabelNumber> number =
      labels_ == Labels::kNumbers ? number_in(label) : std::nullopt;
  return !number         ? std::string(label)
         : number->whole ? std::to_string(*number->whole)
                         : fmt::format("{}", number->value);
}

void CsvSource::name_classes(const LabelFacts& facts) {
  labels_ = facts.first_text.empty() ? Labels::kNumbers : Labels::kTexts;
  if (facts.names.size() > kMostNames) {
    fail(ExitCode::kData,
         "the column '{}' has more than {} different labels, too many for classes; for values use "
         "--task=regression",
         options_.label, kMostNames);
  }
  std::set<std::string> names;
  std::ranges::transform(facts.names, std::inserter(names, names.end()),
                         [&](const std::string& label) { return class_name(label); });
  const std::int64_t count = std::ssize(names);
  if (options_.classes > 0 && count > options_.classes) {
    fail(ExitCode::kData, "the column '{}' has {} different labels, --classes allows {}",
         options_.label, count, options_.classes);
  }
  info_.class_names.assign(names.begin(), names.end());
  for (std::int64_t i = 0; i < count; ++i) {
    classes_by_name_.emplace(info_.class_names[static_cast<std::size_t>(i)], i);
  }
}

double CsvSource::number(const CsvReader& reader, std::size_t column) const {
  const std::string_view text = column == label_ ? label_of(reader) : field(reader, column);
  double value = 0;
  const char* problem = nullptr;
  if (text.empty()) {
    problem = "is empty, a number was expected";
  } else if (!parse_double(text, value)) {
    problem = "is not a number";
  } else if (std::isnan(value) ||
             (std::isinf(value) && text.find_first_of("0123456789") == std::string_view::npos)) {
    problem = "is NaN or infinite";
  } else if (column != label_ && std::abs(value) > double{std::numeric_limits<float>::max()}) {
    problem = "is too large for a 32-bit floating-point number";
  } else if (!std::isfinite(value)) {
    problem = "is too large for a 64-bit floating-point number";
  }
  if (problem != nullptr) {
    fail(ExitCode::kData, "{}:{}: column '{}': '{}' {}", reader.path().string(), reader.line(),
         header_[column], text, problem);
  }
  return value;
}

std::int64_t CsvSource::class_of(const CsvReader& reader) const {
  const std::string_view label = label_of(reader);
  std::int64_t number = -1;
  if (info_.class_names.empty()) {
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
  if (options_.classes == 0 && number >= kMostClasses) {
    fail(ExitCode::kData,
         "{}:{}: column '{}': the label {} is too large for a class number, which may be up to {}; "
         "for values use --task=regression",
         reader.path().string(), reader.line(), options_.label, number, kMostClasses - 1);
  }
  if (options_.classes > 0 && number >= options_.classes) {
    fail(ExitCode::kData,
         "{}:{}: column '{}': the label {} is out of range, expected 0 to {} for {} "
         "classes",
         reader.path().string(), reader.line(), options_.label, label, options_.classes - 1,
         options_.classes);
  }
  return number;
}

void CsvSource::read_row(const CsvReader& reader, std::byte* inputs, std::byte* target) const {
  for (std::size_t column = 0; column < header_.size(); ++column) {
    if (column != label_) {
      const auto value = static_cast<float>(number(reader, column));
      std::memcpy(inputs, &value, sizeof value);
      inputs += sizeof value;
    }
  }
  if (info_.task == Task::kRegression) {
    const double value = number(reader, label_);
    std::memcpy(target, &value, sizeof value);
  } else {
    const std::int64_t value = class_of(reader);
    std::memcpy(target, &value, sizeof value);
  }
}

void CsvSource::next(std::int64_t count, SampleBatch& batch) {
  batch.resize(info_, count);
  for (std::int64_t done = 0; done < count;) {
    if (!reader_) {
      if (next_file_ == options_.inputs.size()) {
        fail(ExitCode::kData, "{} has fewer rows than a moment ago; is the file changing?",
             options_.inputs.back().string());
      }
      reader_.emplace(options_.inputs[next_file_++]);
      find_columns(*reader_);
    }
    if (!reader_->next()) {
      reader_.reset();
      continue;
    }
    read_row(*reader_, batch.inputs.data() + done * info_.input_bytes(),
             batch.targets.data() + done * info_.target_bytes());
    ++done;
  }
}

}  // namespace

std::unique_ptr<SampleSource> open_csv_source(const ImportOptions& options) {
  return std::make_unique<CsvSource>(options);
}

}  // namespace strata::io
