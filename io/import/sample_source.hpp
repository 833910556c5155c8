#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strata/io/import.hpp"

namespace strata::io {

/// Shapes and types of the samples of a source.
struct SampleLayout {
  Shape input_shape;
  DType input_dtype = DType::kUint8;
  Task task = Task::kClassification;
  Shape target_shape;
  DType target_dtype = DType::kInt64;
  std::int64_t classes = 0;  ///< lower bound, whatever the labels
  std::vector<std::string> class_names;
  std::vector<std::string> column_names;  ///< as DatasetInfo's

  [[nodiscard]] std::int64_t input_bytes() const {
    return input_shape.count() * size_bytes(input_dtype);
  }
  [[nodiscard]] std::int64_t target_bytes() const {
    return target_shape.count() * size_bytes(target_dtype);
  }
};

/// Consecutive samples in the storage format of a data set.
struct SampleBatch {
  std::int64_t count = 0;
  std::vector<std::byte> inputs;
  std::vector<std::byte> targets;

  /// Makes room for `samples` samples of `layout`.
  void resize(const SampleLayout& layout, std::int64_t samples) {
    count = samples;
    inputs.resize(static_cast<std::size_t>(samples * layout.input_bytes()));
    targets.resize(static_cast<std::size_t>(samples * layout.target_bytes()));
  }
};

/// Samples in file order, read once and sequentially in bounded memory.
class SampleSource {
 public:
  SampleSource() = default;
  virtual ~SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;

  [[nodiscard]] virtual const SampleLayout& layout() const = 0;
  [[nodiscard]] virtual std::int64_t samples() const = 0;
  /// File names, as stored in the data set.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Reads exactly `count` samples. Pre: so many are left.
  /// Throws: Error(kData) with file and position.
  virtual void next(std::int64_t count, SampleBatch& batch) = 0;
  /// Reads the opened files to their ends, so that damage there is detected.
  virtual void finish() = 0;
  /// Skipped files, each with the reason.
  [[nodiscard]] virtual std::vector<std::string> skipped() const { return {}; }
};

/// Opens the source that the options describe.
/// Throws: Error(kData) for missing or malformed files, Error(kUsage) for contradictory options.
[[nodiscard]] std::unique_ptr<SampleSource> open_array_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<SampleSource> open_csv_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<SampleSource> open_cifar_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<SampleSource> open_image_source(const ImportOptions& options,
                                                              const SampleProgress& checking);

}  // namespace strata::io
