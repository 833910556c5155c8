#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "strata/io/import.hpp"

#include "files/table_reader.hpp"

namespace strata::io {

/// What a pass over the files finds out about an input column of a table.
class ColumnFacts {
 public:
  ColumnFacts(std::string name, const TableOptions& options);

  /// Notes a field of the reader's current row.
  void add(std::string_view field, const TableReader& reader);
  /// The column as the data set stores it. Throws: Error(kData) where fields contradict each other
  /// or the options.
  [[nodiscard]] TableColumn column();

 private:
  void check_names() const;

  std::string name_;
  Missing missing_;
  bool is_named_;  ///< all fields are names, whatever they hold
  std::int64_t rows_ = 0;
  std::int64_t numbers_ = 0;
  double sum_ = 0;
  std::vector<float> values_;  ///< for the median
  std::set<std::string, std::less<>> names_;
  /// The first field of each kind with its place, as in "a.csv:3: column 'x': '1.5'".
  std::string first_number_;
  std::string first_text_;
  std::string first_missing_;
  bool has_decimal_comma_ = false;  ///< the first text
};

}  // namespace strata::io
