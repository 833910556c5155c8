#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "files/input_stream.hpp"
#include "files/table_reader.hpp"

namespace strata::io {

/// The object of a line. Throws: Error(kData) naming the line where it is none.
[[nodiscard]] nlohmann::json object_of_line(std::string_view text,
                                            const std::filesystem::path& path, std::int64_t line);

/// Reads the objects of a file that has one in each line; blank lines are skipped.
class JsonLines {
 public:
  explicit JsonLines(const std::filesystem::path& path) : stream_(path) {}

  [[nodiscard]] const std::filesystem::path& path() const { return stream_.path(); }
  [[nodiscard]] std::int64_t line() const { return line_; }
  [[nodiscard]] const nlohmann::json& object() const { return object_; }

  /// Advances to the next object; false at the end of the file.
  /// Throws: Error(kData) naming the line that is no object, or has more than 64 MiB.
  bool next();

  /// The same for the text of the line alone, which is valid until the next call. Throws:
  /// Error(kData) where it has more than 64 MiB.
  bool next_line();
  [[nodiscard]] std::string_view text() const { return text_; }

 private:
  InputStream stream_;
  std::string_view text_;
  std::string buffer_;
  std::size_t begin_ = 0;
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
