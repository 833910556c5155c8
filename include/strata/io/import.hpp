#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/io/dataset.hpp"

namespace strata::io {

/// Kinds of files that a data set is made from. Each may be gzip-compressed.
enum class ImportFormat {
  kIdx,  ///< a file of images and one of labels
  kCsv,  ///< a header row, then a row a sample
  kNpy   ///< a NumPy array of inputs and one of targets
};

/// How targets are taken.
enum class TaskChoice {
  /// Numbers with a fraction are values; integers and texts are classes, and so is everything where
  /// the number of classes is given.
  kAuto,
  kClassification,
  kRegression
};

/// What becomes of a data set that is already in the output directory.
enum class Existing { kRefuse, kReplace };

/// What to import and how. Several files of one kind are taken one after the other.
struct ImportOptions {
  ImportFormat format = ImportFormat::kIdx;
  /// Images, CSV files, or .npy inputs.
  std::vector<std::filesystem::path> inputs;
  /// Labels or .npy targets, one for each of `inputs`; none for CSV.
  std::vector<std::filesystem::path> targets;
  /// The CSV column with the labels.
  std::string label;
  TaskChoice task = TaskChoice::kAuto;
  /// Number of classes; 0: one more than the largest label found, or the number of names.
  std::int64_t classes = 0;
  /// Samples for train, then for test, in file order: counts as in "8000,2000" or fractions as in
  /// "0.9,0.1". One number makes a train split only.
  std::string split = "0.9,0.1";
  std::filesystem::path output;
  /// Most bytes of inputs in one shard file; a shard holds at least one sample.
  std::int64_t shard_bytes = std::int64_t{1} << 30;
  Existing existing = Existing::kRefuse;
};

/// What was imported.
struct ImportReport {
  std::filesystem::path train;
  std::filesystem::path test;  ///< empty where there is no test split
  std::int64_t train_samples = 0;
  std::int64_t test_samples = 0;
  std::int64_t unused_samples = 0;  ///< behind the splits in file order
  std::int64_t classes = 0;
};

/// Makes `output`/train.h5, `output`/test.h5 and their shard files. Everything is written under
/// temporary names and renamed at the end, the masters last; a failure leaves none of it.
/// Throws: Error(kData) for bad input, naming file and place, or a full disk; Error(kUsage) for
/// options that cannot be met.
ImportReport import_dataset(const ImportOptions& options, const SampleProgress& progress = {});

}  // namespace strata::io

namespace strata {
template <>
struct EnumNames<io::ImportFormat> {
  static constexpr std::array<std::pair<io::ImportFormat, std::string_view>, 3> kTable{
      {{io::ImportFormat::kIdx, "idx"},
       {io::ImportFormat::kCsv, "csv"},
       {io::ImportFormat::kNpy, "npy"}}};
};
template <>
struct EnumNames<io::TaskChoice> {
  static constexpr std::array<std::pair<io::TaskChoice, std::string_view>, 3> kTable{
      {{io::TaskChoice::kAuto, "auto"},
       {io::TaskChoice::kClassification, "classification"},
       {io::TaskChoice::kRegression, "regression"}}};
};
}  // namespace strata
