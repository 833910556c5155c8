#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strata::bench {

/// A csv file with a line of names first.
struct Table {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> lines;

  /// The text of a field; empty where the file has no such column.
  [[nodiscard]] std::string text(std::size_t line, const std::string& name) const;
  /// 0 where the field is empty.
  [[nodiscard]] double number(std::size_t line, const std::string& name) const;
};

/// Throws: Error(kUsage) where the file cannot be read, or a line has not as many fields as there
/// are names.
[[nodiscard]] Table read_table(const std::string& file);

}  // namespace strata::bench
