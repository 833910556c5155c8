#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strata/io/import.hpp"

namespace strata::io {

/// What the samples of a source look like.
struct SampleLayout {
  Shape input_shape;
  DType input_dtype = DType::kUint8;
  Task task = Task::kClassification;
  Shape target_shape;
  DType target_dtype = DType::kInt64;
  std::int64_t classes = 0;  ///< that there are at least, whatever the labels
  std::vector<std::string> class_names;

  [[nodiscard]] std::int64_t input_bytes() const {
    return input_shape.count() * size_bytes(input_dtype);
  }
  [[nodiscard]] std::int64_t target_bytes() const {
    return target_shape.count() * size_bytes(target_dtype);
  }
};

/// Consecutive samples, as a data set stores them.
struct SampleBatch {
  std::int64_t count = 0;
  std::vector<std::byte> inputs;
  std::vector<std::byte> targets;
};

/// Samples in file order, read once from beginning to end in bounded memory.
class SampleSource {
 public:
  SampleSource() = default;
  virtual ~SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;

  [[nodiscard]] virtual const SampleLayout& layout() const = 0;
  [[nodiscard]] virtual std::int64_t samples() const = 0;
  /// File names, as the data set remembers them.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Reads exactly `count` samples. Pre: so many are left.
  /// Throws: Error(kData) naming file and place.
  virtual void next(std::int64_t count, SampleBatch& batch) = 0;
  /// Reads what is left of opened files without keeping it, so that a damaged end does not go
  /// unnoticed.
  virtual void finish() = 0;
  /// Files that were left out, each with the reason.
  [[nodiscard]] virtual std::vector<std::string> skipped() const { return {}; }
};

/// The source that the options describe.
/// Throws: Error(kData) for files that are missing or malformed, Error(kUsage) for options that
/// contradict each other.
[[nodiscard]] std::unique_ptr<SampleSource> open_array_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<SampleSource> open_csv_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<SampleSource> open_cifar_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<SampleSource> open_image_source(const ImportOptions& options,
                                                              const SampleProgress& checking);

}  // namespace strata::io
