#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "files/input_stream.hpp"
#include "files/table_reader.hpp"

namespace strata::io {

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

 private:
  InputStream stream_;
  std::string buffer_;
  std::size_t begin_ = 0;
  std::int64_t line_ = 0;
  nlohmann::json object_;
};

/// The objects of such a file as rows: the members of the first object are the columns, sorted by
/// name. Numbers and texts are fields as they stand, true is 1, false 0, null and a member that is
/// not there an empty field.
class JsonTable final : public TableReader {
 public:
  /// What to do with a member that is no column.
  enum class Others { kRefuse, kLeaveOut };

  /// `columns`: the columns, where the first object does not name them.
  JsonTable(const std::filesystem::path& path, Others others,
            std::vector<std::string> columns = {});

  [[nodiscard]] const std::filesystem::path& path() const override { return lines_.path(); }
  bool next() override;
  [[nodiscard]] std::int64_t line() const override { return lines_.line(); }

 private:
  [[nodiscard]] std::string text_of(const std::string& column, const nlohmann::json& value) const;
  void take_row();

  JsonLines lines_;
  Others others_;
  std::vector<std::string> texts_;
  bool at_first_ = false;  ///< the first object was read, for its names
};

}  // namespace strata::io
