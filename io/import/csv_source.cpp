#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

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
  bool all_class_numbers = true;  // integers from 0
  bool all_integers = true;
  std::set<std::string, std::less<>> names;
};

class CsvSource final : public SampleSource {
 public:
  explicit CsvSource(const ImportOptions& options);

  const SampleLayout& layout() const override { return layout_; }
  std::int64_t samples() const override { return samples_; }
  std::string description() const override {
    return joined_file_names(options_.inputs) + ", label " + options_.label;
  }
  void next(std::int64_t count, SampleBatch& batch) override;
  void finish() override {}  // the first pass reads every file to its end

 private:
  void find_label(const CsvReader& reader);
  void note_label(const CsvReader& reader, LabelFacts& facts) const;
  [[nodiscard]] LabelFacts scan();
  [[nodiscard]] Task task_of(const LabelFacts& facts) const;
  void name_classes(const LabelFacts& facts);
  [[nodiscard]] double number(const CsvReader& reader, std::size_t column) const;
  [[nodiscard]] std::int64_t class_of(const CsvReader& reader) const;
  void read_row(const CsvReader& reader, std::byte* inputs, std::byte* target) const;

  ImportOptions options_;
  std::vector<std::string> header_;
  std::size_t label_ = 0;
  SampleLayout layout_;
  std::int64_t samples_ = 0;
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
  samples_ = facts.rows;
  if (samples_ == 0) {
    fail(ExitCode::kData, "{} has no rows below its header", options.inputs.front().string());
  }
  layout_.input_shape = Shape{static_cast<std::int64_t>(header_.size()) - 1};
  layout_.input_dtype = DType::kFloat32;
  layout_.task = task_of(facts);
  if (layout_.task == Task::kRegression) {
    layout_.target_shape = Shape{1};
    layout_.target_dtype = DType::kFloat64;
  } else if (!facts.all_class_numbers) {
    name_classes(facts);
  }
}

void CsvSource::find_label(const CsvReader& reader) {
  if (header_.empty()) {
    header_ = reader.header();
  } else if (reader.header() != header_) {
    fail(ExitCode::kData, "{} and {} have different columns", options_.inputs.front().string(),
         reader.path().string());
  }
  const auto found = std::find(header_.begin(), header_.end(), options_.label);
  if (found == header_.end()) {
    fail(ExitCode::kData, "{} has no column '{}'; did you mean '{}'?", reader.path().string(),
         options_.label, nearest(options_.label, header_));
  }
  if (header_.size() < 2) {
    fail(ExitCode::kData, "{} has no column besides the label", reader.path().string());
  }
  label_ = static_cast<std::size_t>(found - header_.begin());
}

void CsvSource::note_label(const CsvReader& reader, LabelFacts& facts) const {
  const std::string_view label = reader.fields()[label_];
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
  ++facts.rows;
  std::int64_t integer = 0;
  double value = 0;
  const bool is_integer = parse_int64(label, integer);
  if (is_integer || parse_double(label, value)) {
    if (!std::isfinite(value)) {
      fail(ExitCode::kData, "{} is not finite; correct it or leave the row out", label_text());
    }
    facts.first_number = facts.first_number.empty() ? label_text() : facts.first_number;
  } else {
    facts.first_text = facts.first_text.empty() ? label_text() : facts.first_text;
  }
  facts.all_integers = facts.all_integers && is_integer;
  facts.all_class_numbers = facts.all_class_numbers && is_integer && integer >= 0;
  if (options_.task != TaskChoice::kRegression && facts.names.size() <= kMostNames &&
      !facts.names.contains(label)) {
    facts.names.emplace(label);
  }
}

LabelFacts CsvSource::scan() {
  LabelFacts facts;
  for (const std::filesystem::path& path : options_.inputs) {
    CsvReader reader(path);
    find_label(reader);
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
    return has_text || facts.all_integers ? Task::kClassification : Task::kRegression;
  }
  return Task::kClassification;
}

void CsvSource::name_classes(const LabelFacts& facts) {
  if (facts.names.size() > kMostNames) {
    fail(ExitCode::kData,
         "the column '{}' has more than {} different labels, too many for classes; for values use "
         "--task=regression",
         options_.label, kMostNames);
  }
  const auto count = static_cast<std::int64_t>(facts.names.size());
  if (options_.classes > 0 && count > options_.classes) {
    fail(ExitCode::kData, "the column '{}' has {} different labels, --classes allows {}",
         options_.label, count, options_.classes);
  }
  layout_.class_names.assign(facts.names.begin(), facts.names.end());
  for (std::int64_t i = 0; i < count; ++i) {
    classes_by_name_.emplace(layout_.class_names[static_cast<std::size_t>(i)], i);
  }
}

double CsvSource::number(const CsvReader& reader, std::size_t column) const {
  const std::string_view field = reader.fields()[column];
  double value = 0;
  const char* problem = nullptr;
  if (field.empty()) {
    problem = "is empty, a number was expected";
  } else if (!parse_double(field, value)) {
    problem = "is not a number";
  } else if (!std::isfinite(value)) {
    problem = "is NaN or infinite";
  } else if (column != label_ && std::abs(value) > double{std::numeric_limits<float>::max()}) {
    problem = "is too large for a 32-bit floating-point number";
  }
  if (problem != nullptr) {
    fail(ExitCode::kData, "{}:{}: column '{}': '{}' {}", reader.path().string(), reader.line(),
         header_[column], field, problem);
  }
  return value;
}

std::int64_t CsvSource::class_of(const CsvReader& reader) const {
  const std::string_view label = reader.fields()[label_];
  std::int64_t number = 0;
  if (!layout_.class_names.empty()) {
    const auto found = classes_by_name_.find(label);
    number = found == classes_by_name_.end() ? -1 : found->second;
  } else if (!parse_int64(label, number)) {
    number = -1;
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
  if (layout_.task == Task::kRegression) {
    const double value = number(reader, label_);
    std::memcpy(target, &value, sizeof value);
  } else {
    const std::int64_t value = class_of(reader);
    std::memcpy(target, &value, sizeof value);
  }
}

void CsvSource::next(std::int64_t count, SampleBatch& batch) {
  batch.resize(layout_, count);
  for (std::int64_t done = 0; done < count;) {
    if (!reader_) {
      if (next_file_ == options_.inputs.size()) {
        fail(ExitCode::kData, "{} has fewer rows than a moment ago; is the file changing?",
             options_.inputs.back().string());
      }
      reader_.emplace(options_.inputs[next_file_++]);
    }
    if (!reader_->next()) {
      reader_.reset();
      continue;
    }
    read_row(*reader_, batch.inputs.data() + done * layout_.input_bytes(),
             batch.targets.data() + done * layout_.target_bytes());
    ++done;
  }
}

}  // namespace

std::unique_ptr<SampleSource> open_csv_source(const ImportOptions& options) {
  return std::make_unique<CsvSource>(options);
}

}  // namespace strata::io
