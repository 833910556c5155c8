#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <span>

#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/table.hpp"

#include "dataset/dataset_names.hpp"
#include "files/csv_reader.hpp"
#include "files/json_lines.hpp"
#include "import/input_files.hpp"
#include "import/sample_source.hpp"
#include "import/table_columns.hpp"
#include "import/table_labels.hpp"

namespace strata::io {
namespace {

// Bound the memory for the names of columns.
constexpr std::size_t kMostColumnNames = 100000;
constexpr std::size_t kLongestColumnName = 1000;

// The names of columns, for a message.
std::string columns_text(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 12;
  const std::span<const std::string> shown = std::span(names).first(std::min(names.size(), kShown));
  return fmt::format(
      "the columns {}{}", fmt::join(shown, ", "),
      names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

// Whether a header is the first row of a file without one: numbers that do not count the columns.
bool is_row(const std::vector<std::string>& header) {
  double first = 0;
  bool counts = true;
  for (std::size_t i = 0; i < header.size(); ++i) {
    double number = 0;
    if (!parse_double(header[i], number)) {
      return false;
    }
    first = i == 0 ? number : first;
    counts = counts && number == first + static_cast<double>(i) && (first == 0 || first == 1);
  }
  return !counts;
}

// A column 'a=b' of numbers and a name b of a column a would be one input's name.
void require_different(const std::vector<std::string>& names) {
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) {
      fail(ExitCode::kData, "two inputs would be called '{}'; rename a column", name);
    }
  }
}

class TableSource final : public SampleSource {
 public:
  explicit TableSource(const ImportOptions& options);

  void next(std::int64_t count, SampleBatch& batch) override;
  void finish() override {}  // the first pass reads every file to its end
  [[nodiscard]] std::vector<std::int32_t> labels() override { return labels_.take_classes(); }

 private:
  [[nodiscard]] std::unique_ptr<TableReader> open(const std::filesystem::path& path);
  void check_header(const TableReader& reader) const;
  void choose_columns(const TableReader& reader);
  void find_columns(const TableReader& reader);
  [[nodiscard]] std::string_view field(const TableReader& reader, std::size_t column) const {
    return reader.fields()[places_[column]];
  }
  /// Without the NULs that pad it, as in a column of fixed width.
  [[nodiscard]] std::string_view label_of(const TableReader& reader) const {
    const std::string_view text = field(reader, columns_.size() - 1);
    return text.substr(0, text.find_last_not_of('\0') + 1);
  }
  /// Whether a row is left out, for a missing field.
  [[nodiscard]] bool is_dropped(const TableReader& reader) const;
  void scan();
  void read_row(const TableReader& reader, std::span<float> inputs, std::byte* target) const;

  ImportOptions options_;
  std::vector<std::string> columns_;  // the inputs, then the label
  std::vector<std::size_t> places_;   // of these in the file that is read
  std::vector<std::string> header_;   // of the first file, as others have it
  std::int64_t dropped_ = 0;
  TableLabels labels_;
  std::size_t next_file_ = 0;
  std::unique_ptr<TableReader> reader_;
};

TableSource::TableSource(const ImportOptions& options) : options_(options), labels_(options) {
  if (options.inputs.empty() || !options.targets.empty()) {
    fail(ExitCode::kUsage, "a table import takes one or more files and no separate targets");
  }
  scan();
  info_.source = joined_file_names(options_.inputs) + ", label " + options_.table.label;
  info_.input_dtype = DType::kFloat32;
  for (const TableColumn& column : info_.table) {
    for (const std::string& category : column.categories) {
      info_.column_names.push_back(column.name + "=" + category);
    }
    if (column.categories.empty()) {
      info_.column_names.push_back(column.name);
    }
  }
  info_.input_shape = Shape{std::ssize(info_.column_names)};
  info_.column_names.push_back(options_.table.label);
  require_different(info_.column_names);
  labels_.decide(info_, notes_);
  if (dropped_ > 0) {
    notes_.push_back(
        fmt::format("{} of {} rows have {} and are left out", count_text(dropped_),
                    count_text(dropped_ + info_.samples),
                    options_.table.missing == Missing::kDrop ? "missing fields" : "no label"));
  }
}

std::unique_ptr<TableReader> TableSource::open(const std::filesystem::path& path) {
  if (options_.format == ImportFormat::kCsv) {
    return std::make_unique<CsvReader>(path);
  }
  const auto is_read = [&table = options_.table](const std::string& column) {
    return column == table.label ||
           (std::ranges::count(table.ignore, column) == 0 &&
            (table.columns.empty() || std::ranges::count(table.columns, column) > 0));
  };
  return std::make_unique<JsonTable>(path, is_read, header_);
}

// The names of columns say what numbers mean, so they must differ, and be stored.
void TableSource::check_header(const TableReader& reader) const {
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
    if (longest > kLongestColumnName ||
        longest * reader.header().size() > kMostColumnNames * kLongestColumnName) {
      refuse(fmt::format("has a name of {} bytes, too many for {} columns; rename it", name.size(),
                         reader.header().size()));
    }
    if (!names.insert(name).second) {
      refuse("is there twice; rename one of them or take it out");
    }
  }
}

// Of the first file.
void TableSource::choose_columns(const TableReader& reader) {
  const std::vector<std::string>& header = reader.header();
  if (options_.format == ImportFormat::kCsv && is_row(header)) {
    fail(
        ExitCode::kData,
        "{}:{}: the first line holds numbers, the names of the columns were expected: write a line "
        "with them before it",
        reader.path().string(), reader.line());
  }
  const TableOptions& table = options_.table;
  const auto is_in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  const auto require_column = [&](const std::string& name, std::string_view option) {
    if (is_in(header, name)) {
      return;
    }
    fail(ExitCode::kData, "{} has no column '{}'{}; did you mean '{}'? It has {}",
         reader.path().string(), name, option, nearest(name, header), columns_text(header));
  };
  if (table.label.empty()) {
    fail(ExitCode::kUsage, "which column holds the targets? Name it with --label=COLUMN; {} has {}",
         reader.path().string(), columns_text(header));
  }
  require_column(table.label, "");
  for (const auto& [names, option] : {std::pair{&table.columns, " of --columns"},
                                      {&table.ignore, " of --ignore"},
                                      {&table.categories, " of --categories"}}) {
    for (const std::string& name : *names) {
      require_column(name, option);
      if (name == table.label) {
        fail(ExitCode::kUsage, "the column '{}'{} is the --label, which is no input; leave it out",
             name, option);
      }
    }
  }
  for (const std::string& name : table.columns.empty() ? header : table.columns) {
    if (name != table.label && !is_in(table.ignore, name)) {
      columns_.push_back(name);
    }
  }
  if (columns_.empty()) {
    fail(ExitCode::kData, "{} has no column besides the label{}", reader.path().string(),
         table.ignore.empty() ? "" : " that --ignore does not leave out");
  }
  columns_.push_back(table.label);
  header_ = header;
}

void TableSource::find_columns(const TableReader& reader) {
  check_header(reader);
  const std::vector<std::string>& header = reader.header();
  if (columns_.empty()) {
    choose_columns(reader);
  } else if (std::ranges::find(header, options_.table.label) == header.end()) {
    fail(ExitCode::kData, "{} has no column '{}', which holds the targets; it has {}",
         reader.path().string(), options_.table.label, columns_text(header));
  }
  constexpr const char* kAdvice = "give files of the same columns";
  const std::vector<std::int64_t> places =
      places_of(Columns{options_.inputs.front().string(), columns_},
                Columns{reader.path().string(), header}, "column", kAdvice);
  places_.assign(places.begin(), places.end());
  if (options_.table.columns.empty()) {
    static_cast<void>(places_of(Columns{reader.path().string(), header},
                                Columns{options_.inputs.front().string(), header_}, "column",
                                kAdvice));
  }
}

bool TableSource::is_dropped(const TableReader& reader) const {
  const auto lacks = [&](std::size_t place) { return is_missing(reader.fields()[place]); };
  switch (options_.table.missing) {
    case Missing::kRefuse:
      return false;
    case Missing::kDrop:
      return std::ranges::any_of(places_, lacks);
    default:
      return lacks(places_.back());  // a label cannot be filled in
  }
}

void TableSource::scan() {
  std::vector<ColumnFacts> columns;
  for (const std::filesystem::path& path : options_.inputs) {
    const std::unique_ptr<TableReader> reader = open(path);
    find_columns(*reader);
    for (std::size_t i = columns.size(); i + 1 < columns_.size(); ++i) {
      columns.emplace_back(columns_[i], options_.table);
    }
    while (reader->next()) {
      if (is_dropped(*reader)) {
        ++dropped_;
        continue;
      }
      labels_.add(label_of(*reader), *reader);
      for (std::size_t i = 0; i < columns.size(); ++i) {
        columns[i].add(field(*reader, i), *reader);
      }
    }
    ends_.push_back(labels_.rows());
  }
  info_.samples = labels_.rows();
  if (info_.samples == 0) {
    fail(ExitCode::kData, "{} has no rows{}", options_.inputs.front().string(),
         dropped_ > 0 ? fmt::format(" that are whole; {} are left out", count_text(dropped_))
                      : " below its header");
  }
  info_.table.reserve(columns.size());
  for (ColumnFacts& column : columns) {
    info_.table.push_back(column.column());
  }
}

void TableSource::read_row(const TableReader& reader, std::span<float> inputs,
                           std::byte* target) const {
  std::size_t at = 0;
  for (std::size_t i = 0; i < info_.table.size(); ++i) {
    const auto count = static_cast<std::size_t>(info_.table[i].inputs());
    const std::string problem =
        encode_field(info_.table[i], field(reader, i), inputs.subspan(at, count));
    if (!problem.empty()) {
      fail(ExitCode::kData, "{}:{}: column '{}': '{}' {}", reader.path().string(), reader.line(),
           columns_[i], field(reader, i), problem);
    }
    at += count;
  }
  labels_.encode(label_of(reader), reader, info_.task, target);
}

void TableSource::next(std::int64_t count, SampleBatch& batch) {
  batch.resize(info_, count);
  std::vector<float> inputs(static_cast<std::size_t>(info_.input_shape.count()));
  for (std::int64_t done = 0; done < count;) {
    if (!reader_) {
      if (next_file_ == options_.inputs.size()) {
        fail(ExitCode::kData, "{} has fewer rows than a moment ago; is the file changing?",
             options_.inputs.back().string());
      }
      reader_ = open(options_.inputs[next_file_++]);
      find_columns(*reader_);
    }
    if (!reader_->next()) {
      reader_.reset();
      continue;
    }
    if (!is_dropped(*reader_)) {
      read_row(*reader_, inputs, batch.targets.data() + done * info_.target_bytes());
      std::memcpy(batch.inputs.data() + done * info_.input_bytes(), inputs.data(),
                  static_cast<std::size_t>(info_.input_bytes()));
      ++done;
    }
  }
}

}  // namespace

std::unique_ptr<SampleSource> open_table_source(const ImportOptions& options) {
  return std::make_unique<TableSource>(options);
}

}  // namespace strata::io
