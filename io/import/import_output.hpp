#pragma once

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "strata/io/import.hpp"

#include "hdf5/hdf5_file.hpp"
#include "import/split_text.hpp"

namespace strata::io {

/// Throws: Error(kUsage) where the output holds a data set that may not be replaced.
void refuse_existing(const ImportOptions& options);
/// Removes in its destructor those directories on the path that did not exist when it was
/// constructed and are empty.
class EmptyDirectories {
 public:
  explicit EmptyDirectories(const std::filesystem::path& path);
  ~EmptyDirectories();
  EmptyDirectories(const EmptyDirectories&) = delete;
  EmptyDirectories& operator=(const EmptyDirectories&) = delete;

 private:
  std::vector<std::filesystem::path> absent_;  ///< the innermost first
};

/// Throws: Error(kData).
void make_directory(const std::filesystem::path& directory);
/// Throws: Error(kData) where the file system of the output has fewer bytes free.
void check_space(const ImportOptions& options, std::int64_t needed);
/// Removes the masters, shards and manifests of a data set.
void remove_existing(const std::filesystem::path& directory);

/// Opens a writer for each split that has samples, train first.
template <typename Writer, typename Layout>
[[nodiscard]] std::vector<Writer> open_writers(const ImportOptions& options,
                                               const SplitCounts& counts, const Layout& layout) {
  std::vector<Writer> writers;
  for (const auto& [split, samples] : {std::pair{"train", counts.train}, {"test", counts.test}}) {
    if (samples > 0) {
      writers.emplace_back(options.output, split, layout, samples, options.shard_bytes);
    }
  }
  return writers;
}

/// Writes the masters and renames all files to their final names; the master of train, which every
/// use needs, comes last.
/// Returns: paths and counts. `samples`: all that the source holds.
template <typename Writer, typename Facts>
ImportReport publish(const ImportOptions& options, std::vector<Writer>& writers, const Facts& facts,
                     std::int64_t samples) {
  for (Writer& writer : writers) {
    writer.finish(facts);
  }
  if (options.existing == Existing::kReplace) {
    remove_existing(options.output);
  }
  for (Writer& writer : writers) {
    writer.files().publish_shards();
  }
  const hdf5::Origin directory{options.output, ExitCode::kData};
  hdf5::sync_directory(directory);
  std::for_each(writers.rbegin(), writers.rend(),
                [](Writer& writer) { writer.files().publish_master(); });
  hdf5::sync_directory(directory);

  ImportReport report;
  report.train = writers.front().files().master_path();
  report.train_samples = writers.front().files().samples();
  if (writers.size() > 1) {
    report.test = writers.back().files().master_path();
    report.test_samples = writers.back().files().samples();
  }
  report.unused_samples = samples - report.train_samples - report.test_samples;
  return report;
}

}  // namespace strata::io
