#include "files/json_lines.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/io/json.hpp"

namespace strata::io {
namespace {

constexpr std::size_t kLineBytes = std::size_t{1} << 20;
constexpr std::size_t kLongestLine = std::size_t{64} << 20;

}  // namespace

nlohmann::json object_of_line(std::string_view text, const std::filesystem::path& path,
                              std::int64_t line) {
  std::optional<nlohmann::json> object = parse_json(text);
  if (!object || !object->is_object()) {
    fail(ExitCode::kData, "{}:{}: the line is no JSON object, as {{\"a\": 1, \"b\": \"x\"}} is{}",
         path.string(), line,
         text.starts_with('[')
             ? "; write the elements of an array one per line, as jq -c '.[]' does"
             : "");
  }
  return std::move(*object);
}

bool JsonLines::next() {
  if (!next_line()) {
    return false;
  }
  object_ = object_of_line(text_, path(), line_);
  return true;
}

bool JsonLines::next_line() {
  std::size_t searched = begin_;
  std::string_view line;
  do {
    std::size_t end = buffer_.find('\n', searched);
    while (end == std::string::npos) {
      buffer_.erase(0, begin_);
      begin_ = 0;
      searched = buffer_.size();
      if (searched > kLongestLine) {
        fail(ExitCode::kData,
             "{}:{}: the line does not end within {}; an object per line was expected",
             path().string(), line_ + 1, bytes_text(static_cast<std::int64_t>(kLongestLine)));
      }
      if (stream_.append_to(buffer_, kLineBytes) == 0) {
        if (buffer_.empty()) {
          return false;
        }
        end = buffer_.size();
      } else {
        end = buffer_.find('\n', searched);
      }
    }
    line = trimmed(std::string_view(buffer_).substr(begin_, end - begin_));
    if (line_ == 0 && line.starts_with("\xEF\xBB\xBF")) {
      line.remove_prefix(3);
    }
    begin_ = std::min(end + 1, buffer_.size());
    searched = begin_;
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
