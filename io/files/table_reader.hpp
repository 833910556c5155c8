#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace strata::io {

/// Reads the rows of a table in a file, in order.
class TableReader {
 public:
  TableReader() = default;
  virtual ~TableReader() = default;
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;

  [[nodiscard]] virtual const std::filesystem::path& path() const = 0;
  [[nodiscard]] const std::vector<std::string>& header() const { return header_; }
  /// Advances to the next row; false at the end of the file.
  /// Throws: Error(kData) naming the line.
  virtual bool next() = 0;
  /// The current row's fields, one for each column of the header; valid until next().
  [[nodiscard]] const std::vector<std::string_view>& fields() const { return fields_; }
  /// The line on which the current row begins; 1 is the first.
  [[nodiscard]] virtual std::int64_t line() const = 0;

 protected:
  std::vector<std::string> header_;
  std::vector<std::string_view> fields_;
};

}  // namespace strata::io
