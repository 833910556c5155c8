#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/io/import.hpp"

#include "files/table_reader.hpp"
#include "import/label_counts.hpp"

namespace strata::io {

/// The labels of a table: what a pass over the files finds out about them, and what they become.
class TableLabels {
 public:
  explicit TableLabels(const ImportOptions& options);

  /// Notes the label of the reader's current row.
  void add(std::string_view label, const TableReader& reader);
  [[nodiscard]] std::int64_t rows() const { return rows_; }

  /// Decides the task and the names of the classes; tells of a choice that may be wrong in `notes`.
  /// Throws: Error(kData) where labels contradict each other or the options.
  void decide(DatasetInfo& info, std::vector<std::string>& notes);
  /// The class of each row; empty where there are too many names. Pre: decide() was called.
  [[nodiscard]] std::vector<std::int32_t> take_classes() { return std::move(rows_names_); }
  /// Writes a label as a target. Pre: decide() was called. Throws: Error(kData).
  void encode(std::string_view label, const TableReader& reader, Task task,
              std::byte* target) const;

 private:
  [[nodiscard]] Task task_of(std::vector<std::string>& notes) const;
  void name_classes(DatasetInfo& info);
  void number_rows();
  [[nodiscard]] std::string class_name(std::string_view label) const;
  [[nodiscard]] double value_of(std::string_view text, const TableReader& reader) const;
  [[nodiscard]] std::int64_t class_of(std::string_view label, const TableReader& reader) const;

  std::string column_;
  TaskChoice task_;
  std::int64_t asked_;  ///< number of classes; 0: not given

  std::int64_t rows_ = 0;
  std::string first_text_;  ///< "file:line: the label 'x'"
  std::string first_number_;
  bool all_class_numbers_ = true;  ///< whole numbers from 0
  bool all_whole_ = true;
  LabelCounts counts_;  ///< of whole numbers
  /// As they stand in the files, numbered by first occurrence.
  std::map<std::string, std::int32_t, std::less<>> names_;
  std::vector<std::int32_t> rows_names_;  ///< of each row: the number of its name, then its class
  enum class Labels { kTexts, kNumbers } kind_ = Labels::kTexts;
  bool is_named_ = false;
  std::map<std::string, std::int64_t, std::less<>> classes_by_name_;
};

}  // namespace strata::io
