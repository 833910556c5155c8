#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "files/input_stream.hpp"
#include "files/table_reader.hpp"

namespace strata::io {

/// Where a line is.
struct LinePlace {
  std::filesystem::path file;
  std::int64_t begin = 0;   ///< a byte of the file
  std::int64_t number = 0;  ///< of the line, from there on, where lines begin; the first is 1

  /// As in "a.jsonl:7". Reads the file up to `begin`.
  [[nodiscard]] std::string text() const;
};

/// The object of a line. Throws: Error(kData) naming the line where it is none.
[[nodiscard]] nlohmann::json object_of_line(std::string_view text, const LinePlace& place);

/// Reads the objects of a file that has one in each line; blank lines are skipped.
class JsonLines {
 public:
  /// Reads the lines that begin in [begin, end) of the file's bytes. Pre: of a compressed file,
  /// all.
  explicit JsonLines(const std::filesystem::path& path, std::int64_t begin = 0,
                     std::int64_t end = std::numeric_limits<std::int64_t>::max());

  [[nodiscard]] const std::filesystem::path& path() const { return stream_.path(); }
  /// Counted from the first line that is read.
  [[nodiscard]] std::int64_t line() const { return line_; }
  [[nodiscard]] const nlohmann::json& object() const { return object_; }

  /// Advances to the next object; false at the end of the file.
  /// Throws: Error(kData) naming the line that is no object, or has more than 64 MiB.
  bool next();

  /// The same for the text of the line alone, which is valid until the next call. Throws:
  /// Error(kData) where it has more than 64 MiB.
  bool next_line();
  [[nodiscard]] std::string_view text() const { return text_; }
  /// That of the line.
  [[nodiscard]] LinePlace place() const { return {path(), first_, line_}; }

 private:
  /// Reads more into the buffer, from whose front what was used is removed; false at the end.
  [[nodiscard]] bool read_more();

  InputStream stream_;
  std::int64_t first_;   ///< where reading began
  std::int64_t end_;     ///< of the bytes in which lines begin
  std::int64_t offset_;  ///< of the buffer, in the file
  std::string_view text_;
  std::string buffer_;
  std::size_t begin_ = 0;  ///< of what was not used, in the buffer
  std::int64_t line_ = 0;
  nlohmann::json object_;
};

/// The objects of such a file as rows: all members of all objects are the columns, sorted by name.
/// Numbers and texts are fields as they stand, true is 1, false 0, null and a member that is not
/// there an empty field.
class JsonTable final : public TableReader {
 public:
  /// Reads the file once for its names. `is_read`: whether a column's fields are needed; those of
  /// others are empty, whatever they hold. `further`: columns that the file need not have.
  /// Throws: Error(kData) for a file without objects or with more than 100,000 columns.
  JsonTable(const std::filesystem::path& path,
            const std::function<bool(const std::string& column)>& is_read,
            const std::vector<std::string>& further = {});

  [[nodiscard]] const std::filesystem::path& path() const override { return lines_.path(); }
  bool next() override;
  [[nodiscard]] std::int64_t line() const override { return lines_.line(); }

 private:
  [[nodiscard]] std::string text_of(const std::string& column, const nlohmann::json& value) const;

  JsonLines lines_;
  std::vector<bool> is_read_;  ///< of each column
  std::vector<std::string> texts_;
};

}  // namespace strata::io
