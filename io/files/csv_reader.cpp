#include "files/csv_reader.hpp"

#include <algorithm>
#include <array>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::io {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr std::size_t kLongestRecord = std::size_t{64} << 20;
constexpr std::size_t kLongestHeader = std::size_t{16} << 20;
constexpr std::size_t kMostColumns = std::size_t{1} << 20;

/// The separator that a header has most of outside of quotes; the comma where it has none.
char separator_of(std::string_view header) {
  constexpr std::string_view kSeparators = ",;\t|";
  std::array<std::int64_t, kSeparators.size()> counts{};
  bool inside_quotes = false;
  for (const char character : header) {
    inside_quotes ^= character == '"';
    if (const std::size_t at = kSeparators.find(character);
        at != std::string_view::npos && !inside_quotes) {
      ++counts[at];
    }
  }
  return kSeparators[static_cast<std::size_t>(std::ranges::max_element(counts) - counts.begin())];
}

}  // namespace

CsvReader::CsvReader(const std::filesystem::path& path) : stream_(path) {
  refill();
  if (buffer_.starts_with("\xEF\xBB\xBF")) {
    begin_ = 3;
  }
  if (!next()) {
    fail(ExitCode::kData, "{} is empty, a header row with the names of the columns was expected",
         path.string());
  }
  header_.assign(fields_.begin(), fields_.end());
}

// Drops consumed bytes and appends more from the file; false at the end of the file.
bool CsvReader::refill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t longest = header_.empty() ? kLongestHeader : kLongestRecord;
  if (buffer_.size() > longest) {
    fail(ExitCode::kData, "{}:{}: the {} does not end within {}; is a closing quote missing?",
         path().string(), next_line_, header_.empty() ? "header" : "record",
         bytes_text(static_cast<std::int64_t>(longest)));
  }
  return stream_.append_to(buffer_, kReadBytes) > 0;
}

bool CsvReader::read_record(std::string_view& record) {
  // A line break ends the record where the number of quotes before it is even.
  std::size_t searched = 0;
  std::size_t lines = 0;
  bool inside_quotes = false;
  for (;;) {
    const std::string_view rest = std::string_view(buffer_).substr(begin_);
    const std::size_t end = rest.find('\n', searched);
    if (end == std::string_view::npos) {
      if (refill()) {
        continue;
      }
      record = std::string_view(buffer_).substr(begin_);
      if (record.empty()) {
        return false;
      }
      lines += 1;
      begin_ = buffer_.size();
      break;
    }
    const std::string_view line = rest.substr(searched, end - searched);
    if (std::count(line.begin(), line.end(), '"') % 2 != 0) {
      inside_quotes = !inside_quotes;
    }
    lines += 1;
    searched = end + 1;
    if (!inside_quotes) {
      record = rest.substr(0, end);
      begin_ += end + 1;
      break;
    }
  }
  line_ = next_line_;
  next_line_ += static_cast<std::int64_t>(lines);
  if (record.ends_with('\r')) {
    record.remove_suffix(1);
  }
  return true;
}

bool CsvReader::next() {
  std::string_view record;
  do {
    if (!read_record(record)) {
      return false;
    }
  } while (trimmed(record).empty() && record.find(separator_) == std::string_view::npos);
  if (header_.empty()) {
    separator_ = separator_of(record);
  }
  fields_.clear();
  field_count_ = 0;
  if (record.find('"') == std::string_view::npos) {
    split_plain(record);
  } else {
    split_quoted(record);
  }
  if (field_count_ > kMostColumns) {
    fail(ExitCode::kData, "{}:{}: {} fields; at most {} columns are read", path().string(), line_,
         field_count_, kMostColumns);
  }
  if (!header_.empty() && field_count_ != header_.size()) {
    fail(ExitCode::kData, "{}:{}: the row has {} fields, the header names {} columns",
         path().string(), line_, field_count_, header_.size());
  }
  return true;
}

void CsvReader::add_field(std::string_view field) {
  // Memory for the fields that are expected, not for those that a wrong file has.
  if (fields_.size() < (header_.empty() ? kMostColumns : header_.size())) {
    fields_.push_back(field);
  }
  ++field_count_;
}

void CsvReader::split_plain(std::string_view record) {
  for (std::size_t begin = 0; begin <= record.size();) {
    const std::size_t end = std::min(record.find(separator_, begin), record.size());
    add_field(trimmed(record.substr(begin, end - begin)));
    begin = end + 1;
  }
}

void CsvReader::split_quoted(std::string_view record) {
  // Fields are views into `unquoted_`, so it must not reallocate while it is filled.
  unquoted_.clear();
  unquoted_.reserve(record.size());
  for (std::size_t at = 0; at <= record.size();) {
    const std::size_t quote = record.find_first_not_of(separator_ == '\t' ? " " : " \t", at);
    if (quote == std::string_view::npos || record[quote] != '"') {
      const std::size_t end = std::min(record.find(separator_, at), record.size());
      const std::string_view field = trimmed(record.substr(at, end - at));
      if (field.find('"') != std::string_view::npos) {
        fail(ExitCode::kData,
             "{}:{}: field {} has a quote but does not begin with one; quote the whole field and "
             "double the quotes inside",
             path().string(), line_, field_count_ + 1);
      }
      add_field(field);
      at = end + 1;
      continue;
    }
    const std::size_t first = unquoted_.size();
    std::size_t close = record.find('"', quote + 1);
    while (close != std::string_view::npos && close + 1 < record.size() &&
           record[close + 1] == '"') {
      close = record.find('"', close + 2);
    }
    if (close == std::string_view::npos) {
      fail(ExitCode::kData, "{}:{}: the quote that opens field {} is never closed", path().string(),
           line_, field_count_ + 1);
    }
    for (std::size_t i = quote + 1; i < close; ++i) {
      unquoted_ += record[i];
      i += record[i] == '"' ? 1 : 0;
    }
    const std::size_t end = std::min(record.find(separator_, close), record.size());
    if (!trimmed(record.substr(close + 1, end - close - 1)).empty()) {
      fail(ExitCode::kData, "{}:{}: field {} goes on after its closing quote", path().string(),
           line_, field_count_ + 1);
    }
    add_field(std::string_view(unquoted_).substr(first));
    at = end + 1;
  }
}

}  // namespace strata::io
