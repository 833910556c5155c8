#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "strata/core/log.hpp"
#include "strata/io/directory_lock.hpp"
#include "strata/io/empty_directories.hpp"
#include "strata/io/import.hpp"

#include "import/pending_file.hpp"
#include "import/split_text.hpp"

namespace strata::io {

/// The output of an import, locked against other imports.
class OutputDirectory {
 public:
  /// Makes the directory, takes its lock and removes the unfinished files of imports that were
  /// killed.
  /// Throws: Error(kUsage) where another import holds the lock, or where there is a data set that
  /// may not be replaced; Error(kData) where the directory cannot be made.
  explicit OutputDirectory(const ImportOptions& options);

  /// Checks that this process still holds the lock, and removes the data set that is replaced.
  void prepare() const;
  /// Puts the names of the files on disk.
  void sync() const;

 private:
  void remove(ImportedFile kind) const;

  std::filesystem::path path_;
  Existing existing_;
  EmptyDirectories unused_;
  Log log_;
  std::optional<DirectoryLock> lock_;
};

/// Throws: Error(kData) where the file system of the output has fewer bytes free.
void check_space(const ImportOptions& options, std::int64_t needed);

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
ImportReport publish(const OutputDirectory& output, std::vector<Writer>& writers,
                     const Facts& facts, std::int64_t samples) {
  for (Writer& writer : writers) {
    writer.finish(facts);
  }
  output.prepare();
  for (Writer& writer : writers) {
    writer.publish_shards();
  }
  output.sync();
  std::for_each(writers.rbegin(), writers.rend(), [](Writer& writer) { writer.publish_master(); });
  output.sync();

  ImportReport report;
  report.train = writers.front().master_path();
  report.train_samples = writers.front().samples();
  if (writers.size() > 1) {
    report.test = writers.back().master_path();
    report.test_samples = writers.back().samples();
  }
  report.unused_samples = samples - report.train_samples - report.test_samples;
  return report;
}

}  // namespace strata::io
