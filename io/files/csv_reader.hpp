#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "files/input_stream.hpp"
#include "files/table_reader.hpp"

namespace strata::io {

/// Reads the records of a file whose fields are separated by the comma, semicolon, tab or bar that
/// its header has most of. Fields may be quoted, with doubled quotes and line breaks inside, and
/// come without the white space around them; blank lines are skipped.
/// Source: Y. Shafranovich, RFC 4180.
class CsvReader final : public TableReader {
 public:
  /// Reads the header row.
  /// Throws: Error(kData) for an empty file, and for a header of more than 16 MiB or 2^20 columns.
  explicit CsvReader(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const override { return stream_.path(); }

  /// Throws: Error(kData) naming the line for a record with another number of fields than the
  /// header or of more than 64 MiB, and for misplaced or missing quotes.
  bool next() override;
  [[nodiscard]] std::int64_t line() const override { return line_; }

 private:
  bool read_record(std::string_view& record);
  bool refill();
  void add_field(std::string_view field);
  void split_plain(std::string_view record);
  void split_quoted(std::string_view record);

  InputStream stream_;
  char separator_ = ',';
  std::string buffer_;
  std::size_t begin_ = 0;
  std::int64_t line_ = 0;
  std::int64_t next_line_ = 1;
  std::string unquoted_;
  std::size_t field_count_ = 0;  ///< of the current record, stored in fields_ or not
};

}  // namespace strata::io
