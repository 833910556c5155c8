#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include <fmt/format.h>

#include "strata/core/text.hpp"

namespace strata::io {

/// Decides whether targets that are whole numbers are classes.
class LabelCounts {
 public:
  void add(std::int64_t label) {
    ++samples_;
    if (distinct_.size() <= kMostNoted) {
      distinct_.insert(label);
    }
  }

  /// Classes have many samples each: 10 in the mean, or 2 where there are at most 20 classes. More
  /// than 20 of them are numbered with few gaps. A few samples may have classes 0, 1, 2, ...
  /// without a gap, of which one is there again.
  [[nodiscard]] bool are_classes() const {
    const std::int64_t count = std::ssize(distinct_);
    if (count <= 2) {
      return true;
    }
    if (count <= 20) {
      const bool has_no_gaps = *distinct_.begin() == 0 && *distinct_.rbegin() == count - 1;
      return samples_ >= 2 * count || (has_no_gaps && samples_ > count);
    }
    return distinct_.size() <= kMostNoted && samples_ >= 10 * count &&
           *distinct_.rbegin() - *distinct_.begin() < 2 * count;
  }

  /// Whether the class number of a label can be the label itself; more than are counted have no
  /// names either.
  [[nodiscard]] bool has_few_gaps() const {
    const std::int64_t count = std::ssize(distinct_);
    return distinct_.size() > kMostNoted ||
           (*distinct_.begin() >= 0 && *distinct_.rbegin() < std::max<std::int64_t>(10, 2 * count));
  }
  /// Whether there are so many classes that they may be values.
  [[nodiscard]] bool are_many() const { return distinct_.size() > 10; }

  /// Says that the targets of a file or column were taken as values.
  [[nodiscard]] std::string values_note(const std::string& what) const {
    return fmt::format(
        "{}: {}{} different whole numbers in {} samples are taken as values; if they are classes, "
        "give --task=classes",
        what, distinct_.size() > kMostNoted ? "more than " : "",
        count_text(std::min<std::int64_t>(std::ssize(distinct_), kMostNoted)),
        count_text(samples_));
  }
  /// Says that they were taken as classes.
  [[nodiscard]] std::string classes_note(const std::string& what) const {
    return fmt::format(
        "{}: {} different whole numbers in {} samples are taken as classes; if they are values, "
        "give --task=values",
        what, count_text(std::ssize(distinct_)), count_text(samples_));
  }

 private:
  /// Bounds the memory.
  static constexpr std::int64_t kMostNoted = 100000;

  std::int64_t samples_ = 0;
  std::set<std::int64_t> distinct_;
};

}  // namespace strata::io
