#include "files/json_lines.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"

namespace strata::io {
namespace {

constexpr std::int64_t kLineBytes = std::int64_t{1} << 20;
constexpr std::size_t kLongestLine = std::size_t{64} << 20;

}  // namespace

std::string LinePlace::text() const {
  InputStream stream(file);
  std::string bytes;
  std::int64_t before = 0;
  for (std::int64_t left = begin; left > 0; left -= std::ssize(bytes)) {
    bytes.clear();
    if (stream.append_to(bytes, static_cast<std::size_t>(std::min(kLineBytes, left))) == 0) {
      break;
    }
    before += std::ranges::count(bytes, '\n');
  }
  return fmt::format("{}:{}", file.string(), before + number);
}

nlohmann::json object_of_line(std::string_view text, const LinePlace& place) {
  std::optional<nlohmann::json> object = parse_json(text);
  if (!object || !object->is_object()) {
    fail(ExitCode::kData, "{}: the line is no JSON object, as {{\"a\": 1, \"b\": \"x\"}} is{}",
         place.text(),
         text.starts_with('[')
             ? "; write the elements of an array one per line, as jq -c '.[]' does"
         : utf8_prefix(text).rest != Utf8Prefix::Rest::kNothing
             ? "; its text is not UTF-8, so convert the file to UTF-8"
             : "");
  }
  return std::move(*object);
}

JsonLines::JsonLines(const std::filesystem::path& path, std::int64_t begin, std::int64_t end)
    // The byte before tells whether a line begins here.
    : stream_(path, std::max<std::int64_t>(0, begin - 1)),
      first_(begin),
      end_(end),
      offset_(std::max<std::int64_t>(0, begin - 1)) {
  std::size_t line = begin > 0 ? buffer_.find('\n') : 0;
  while (line == std::string::npos && offset_ + std::ssize(buffer_) < end_) {
    begin_ = buffer_.size();
    if (!read_more()) {
      return;
    }
    line = buffer_.find('\n');
  }
  begin_ = line == std::string::npos ? buffer_.size() : line + (begin > 0 ? 1 : 0);
  first_ = offset_ + static_cast<std::int64_t>(begin_);
}

bool JsonLines::read_more() {
  buffer_.erase(0, begin_);
  offset_ += static_cast<std::int64_t>(begin_);
  begin_ = 0;
  return stream_.append_to(buffer_, static_cast<std::size_t>(kLineBytes)) > 0;
}

bool JsonLines::next() {
  if (!next_line()) {
    return false;
  }
  object_ = object_of_line(text_, place());
  return true;
}

bool JsonLines::next_line() {
  std::string_view line;
  do {
    if (offset_ + static_cast<std::int64_t>(begin_) >= end_) {
      return false;
    }
    std::size_t end = buffer_.find('\n', begin_);
    while (end == std::string::npos) {
      const std::size_t searched = buffer_.size() - begin_;
      if (searched > kLongestLine) {
        fail(ExitCode::kData,
             "{}: the line does not end within {}; an object per line was expected",
             LinePlace{path(), first_, line_ + 1}.text(),
             bytes_text(static_cast<std::int64_t>(kLongestLine)));
      }
      if (!read_more()) {
        if (buffer_.empty()) {
          return false;
        }
        end = buffer_.size();
      } else {
        end = buffer_.find('\n', searched);
      }
    }
    const bool is_first = offset_ == 0 && begin_ == 0;
    line = trimmed(std::string_view(buffer_).substr(begin_, end - begin_));
    if (is_first && line.starts_with("\xEF\xBB\xBF")) {
      line.remove_prefix(3);
    }
    begin_ = std::min(end + 1, buffer_.size());
    ++line_;
  } while (line.empty());
  text_ = line;
  return true;
}

JsonTable::JsonTable(const std::filesystem::path& path,
                     const std::function<bool(const std::string& column)>& is_read,
                     const std::vector<std::string>& further)
    : lines_(path) {
  constexpr std::size_t kMostColumns = 100000;
  std::set<std::string> names(further.begin(), further.end());
  JsonLines lines(path);
  while (lines.next()) {
    for (const auto& [name, value] : lines.object().items()) {
      names.insert(name);
    }
    if (names.size() > kMostColumns) {
      fail(ExitCode::kData, "{}:{}: more than {} different fields, too many for a table",
           path.string(), lines.line(), count_text(kMostColumns));
    }
  }
  if (lines.line() == 0 || names.empty()) {
    fail(ExitCode::kData, "{} is empty, an object per line was expected", path.string());
  }
  header_.assign(names.begin(), names.end());
  std::ranges::transform(header_, std::back_inserter(is_read_), is_read);
  texts_.resize(header_.size());
  fields_.resize(header_.size());
}

bool JsonTable::next() {
  if (!lines_.next()) {
    return false;
  }
  const nlohmann::json& object = lines_.object();
  for (std::size_t i = 0; i < header_.size(); ++i) {
    const auto member = is_read_[i] ? object.find(header_[i]) : object.end();
    texts_[i] = member != object.end() ? text_of(header_[i], *member) : "";
    fields_[i] = texts_[i];
  }
  return true;
}

std::string JsonTable::text_of(const std::string& column, const nlohmann::json& value) const {
  if (value.is_string()) {
    return std::string(trimmed(value.get_ref<const std::string&>()));
  }
  if (value.is_null()) {
    return "";
  }
  if (value.is_boolean()) {
    return value.get<bool>() ? "1" : "0";
  }
  if (!value.is_number()) {
    fail(ExitCode::kData,
         "{}:{}: the field '{}' is an {}, a number or a text was expected; give --ignore={} or one "
         "field for each element",
         path().string(), line(), column, value.is_array() ? "array" : "object", column);
  }
  return value.dump();
}

}  // namespace strata::io
