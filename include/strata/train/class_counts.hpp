#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/core/tensor.hpp"

namespace strata::train {

/// What a classifier said of samples whose class is known, counted. Integers: the same whatever
/// order they are added in.
class ClassCounts {
 public:
  /// How many of the likeliest classes count as "in the first five".
  static constexpr std::int64_t kFirst = 5;

  explicit ClassCounts(std::int64_t classes);

  /// Counts the first `valid` rows. Shapes: logits rows x classes, floating-point; labels rows
  /// (int64). Of equal logits the first counts as the larger.
  void add(const ConstTensorView& logits, const ConstTensorView& labels, std::int64_t valid);
  /// Adds up what all ranks of a group counted. Communication: one gather a class over the group.
  void add_up(comm::Communicator& group);
  /// Replaces the counts by those of one rank of the group.
  void take_from(comm::Communicator& group, std::int64_t root);

  [[nodiscard]] std::int64_t classes() const { return classes_; }
  /// Samples of class `label` that were taken for class `answer`.
  [[nodiscard]] std::int64_t count(std::int64_t label, std::int64_t answer) const {
    return row(label)[static_cast<std::size_t>(answer)];
  }
  [[nodiscard]] std::int64_t samples(std::int64_t label) const;
  /// Share of the samples whose class is among the kFirst likeliest.
  [[nodiscard]] double accuracy_in_first() const;

 private:
  /// A class's answers, then its samples that were among the first.
  [[nodiscard]] std::span<const std::int64_t> row(std::int64_t label) const {
    return std::span(counts_).subspan(static_cast<std::size_t>(label * (classes_ + 1)),
                                      static_cast<std::size_t>(classes_ + 1));
  }

  std::int64_t classes_;
  std::vector<std::int64_t> counts_;
};

/// A line for each class: samples, accuracy, and what it is taken for most. `names` may be short.
[[nodiscard]] std::string class_table(const ClassCounts& counts,
                                      std::span<const std::string> names);

/// Finds out whether write_confusion() could write the file, and leaves it as it is.
/// Throws: Error(kUsage) where it could not.
void require_confusion_writable(const std::filesystem::path& file);

/// Writes the confusion matrix as CSV: a row for each class, a column for each answer, both named
/// in the first. Throws: Error(kUsage) where the file cannot be written.
void write_confusion(const ClassCounts& counts, std::span<const std::string> names,
                     const std::filesystem::path& file);

}  // namespace strata::train
