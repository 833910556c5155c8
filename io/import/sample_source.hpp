#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strata/io/import.hpp"

namespace strata::io {

/// Consecutive samples in the storage format of a data set.
struct SampleBatch {
  std::int64_t count = 0;
  std::vector<std::byte> inputs;
  std::vector<std::byte> targets;

  /// Makes room for `samples` samples as in `layout`.
  void resize(const DatasetInfo& layout, std::int64_t samples) {
    count = samples;
    inputs.resize(static_cast<std::size_t>(samples * layout.input_bytes()));
    targets.resize(static_cast<std::size_t>(samples * layout.target_bytes()));
  }
};

/// The layout of samples for a model that learned from `model`.
[[nodiscard]] inline DatasetInfo model_layout(const DatasetInfo& model) {
  DatasetInfo info = model;
  info.samples = 0;
  info.shards.clear();
  return info;
}

/// Samples in file order, read once and sequentially in bounded memory.
class SampleSource {
 public:
  SampleSource() = default;
  virtual ~SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;

  /// Shapes, types, names and number of the samples. The source is the names of the files; the
  /// number of classes is a lower bound, whatever the labels.
  [[nodiscard]] const DatasetInfo& info() const { return info_; }

  /// Reads exactly `count` samples. Pre: so many are left.
  /// Throws: Error(kData) with file and position.
  virtual void next(std::int64_t count, SampleBatch& batch) = 0;
  /// The number of samples up to the end of each input.
  [[nodiscard]] const std::vector<std::int64_t>& ends() const { return ends_; }
  /// The class of each sample. Pre: the task is classification; next() was not called.
  [[nodiscard]] virtual std::vector<std::int32_t> labels() = 0;
  /// Has next() give only these samples, in this order; false where files are read in order.
  [[nodiscard]] virtual bool choose(std::vector<std::int64_t> /*samples*/) { return false; }
  /// Reads the opened files to their ends, so that damage there is detected.
  virtual void finish() = 0;
  /// Skipped files, each with the reason.
  [[nodiscard]] virtual std::vector<std::string> skipped() const { return {}; }
  /// What a user should know about how the files were understood.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  /// Names of the samples, as ImportReport has them.
  [[nodiscard]] const std::vector<std::string>& ids() const { return ids_; }

 protected:
  DatasetInfo info_;
  std::vector<std::int64_t> ends_;
  std::vector<std::string> notes_;
  std::vector<std::string> ids_;
};

/// Opens the source that the options describe.
/// Throws: Error(kData) for missing or malformed files, Error(kUsage) for contradictory options.
[[nodiscard]] std::unique_ptr<SampleSource> open_array_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<SampleSource> open_table_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<SampleSource> open_cifar_source(const ImportOptions& options);
[[nodiscard]] std::unique_ptr<SampleSource> open_image_source(const ImportOptions& options,
                                                              const SampleProgress& checking);
/// Of tables and arrays. Pre: options.model.
[[nodiscard]] std::unique_ptr<SampleSource> open_new_samples(const ImportOptions& options);

}  // namespace strata::io
