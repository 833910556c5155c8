#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/core/tensor.hpp"

namespace strata::train {

/// The confusion matrix of a classifier. Counts are integers, so the order of additions does not
/// matter.
class ClassCounts {
 public:
  /// k of the top-k accuracy.
  static constexpr std::int64_t kFirst = 5;

  explicit ClassCounts(std::int64_t classes);

  /// Counts the first `valid` rows. Of equal logits the first is the larger.
  /// Shapes: logits rows x classes, floating-point; labels rows (int64).
  void add(const ConstTensorView& logits, const ConstTensorView& labels, std::int64_t valid);
  /// Sums the counts of all ranks of a group. Communication: one all-gather per class.
  void add_up(comm::Communicator& group);
  /// Replaces the counts by those of rank `root` of the group. Communication: one broadcast per
  /// class.
  void take_from(comm::Communicator& group, std::int64_t root);

  [[nodiscard]] std::int64_t classes() const { return classes_; }
  /// Samples of class `label` that were predicted as class `answer`.
  [[nodiscard]] std::int64_t count(std::int64_t label, std::int64_t answer) const {
    return row(label)[static_cast<std::size_t>(answer)];
  }
  [[nodiscard]] std::int64_t samples(std::int64_t label) const;
  /// The mean over classes of 2 correct predictions / (samples of the class + predictions of it);
  /// classes with neither do not count.
  [[nodiscard]] double macro_f1() const;
  /// Top-kFirst accuracy.
  [[nodiscard]] double accuracy_in_first() const;

 private:
  /// The predictions of a class, then its number of samples in the top kFirst.
  [[nodiscard]] std::span<const std::int64_t> row(std::int64_t label) const {
    return std::span(counts_).subspan(static_cast<std::size_t>(label * (classes_ + 1)),
                                      static_cast<std::size_t>(classes_ + 1));
  }

  std::int64_t classes_;
  std::vector<std::int64_t> counts_;
};

/// A line per class: samples, accuracy, and its most frequent wrong prediction. `names` may have
/// fewer names than there are classes.
[[nodiscard]] std::string class_table(const ClassCounts& counts,
                                      std::span<const std::string> names);

/// Writes the confusion matrix as CSV: a row per class, a column per prediction, with class names
/// in the first row and column. Throws: Error(kUsage) where the file cannot be written.
void write_confusion(const ClassCounts& counts, std::span<const std::string> names,
                     const std::filesystem::path& file);

/// A confusion matrix that write_confusion() wrote.
struct ConfusionTable {
  std::vector<std::string> names;           ///< of the classes
  std::vector<std::vector<double>> counts;  ///< a row per class, a column per prediction
};

/// Nothing where the text is another CSV file.
[[nodiscard]] std::optional<ConfusionTable> confusion_in(std::string_view text);

}  // namespace strata::train
