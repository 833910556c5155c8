#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/enum_names.hpp"

namespace strata::io {

/// How predictions are written.
enum class PredictionFormat {
  kCsv,  ///< a header, then a line for each sample: its id, its texts, its numbers
  kNpy   ///< the numbers alone, as a NumPy array of samples x numbers (float64)
};

constexpr auto enum_names(PredictionFormat) {
  return names_in_order("csv", "npy");
}

/// What a file of predictions holds.
struct PredictionLayout {
  PredictionFormat format = PredictionFormat::kCsv;
  std::vector<std::string> columns;  ///< of a CSV file
  std::int64_t samples = 0;
  std::int64_t numbers = 1;  ///< of one sample
  int digits = 9;            ///< of a number in a CSV file; 17 read back to the same double
};

/// Writes predictions in the order of samples.
class PredictionFile {
 public:
  /// Throws: Error(kUsage) where the file cannot be written, as the other functions.
  PredictionFile(std::filesystem::path path, const PredictionLayout& layout);

  /// Adds the next sample. `texts` stand before the numbers in a CSV file.
  void add(std::span<const std::string> texts, std::span<const double> numbers);
  /// Pre: all samples were added.
  void finish();

 private:
  void require_written() const;

  std::filesystem::path path_;
  PredictionLayout layout_;
  std::ofstream file_;
  std::string line_;
  std::int64_t added_ = 0;
};

}  // namespace strata::io
