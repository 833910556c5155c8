#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
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

  /// Removes the pieces of the input that were read, of some names or all.
  void remove_pieces(const std::function<bool(const std::string& name)>& which = {}) const;
  /// Checks that this process still holds the lock, and removes the data set that is replaced.
  void prepare() const;
  /// Puts the names of the files on disk.
  void sync() const;

 private:
  void remove(ImportedFile kind,
              const std::function<bool(const std::string& name)>& which = {}) const;

  std::filesystem::path path_;
  Existing existing_;
  EmptyDirectories unused_;
  Log log_;
  std::optional<DirectoryLock> lock_;
};

/// Throws: Error(kData) where the file system of the output has fewer bytes free.
void check_space(const ImportOptions& options, std::int64_t needed);

/// Opens a writer for each split that has samples, train first.
template <typename Writer, typename Layout, typename... Ranks>
[[nodiscard]] std::vector<Writer> open_writers(const ImportOptions& options,
                                               const SplitCounts& counts, const Layout& layout,
                                               const Ranks&... ranks) {
  std::vector<Writer> writers;
  for (const auto& [split, samples] : {std::pair{"train", counts.train}, {"test", counts.test}}) {
    if (samples > 0) {
      writers.emplace_back(options.output, split, layout, samples, options.shard_bytes, ranks...);
    }
  }
  return writers;
}

/// Writes the masters and renames all files to their final names; the master of train, which every
/// use needs, comes last. `output`: null but on rank 0.
/// Returns: paths and counts. `samples`: all that the source holds.
template <typename Writer, typename Facts>
ImportReport publish(const OutputDirectory* output, std::vector<Writer>& writers,
                     const Facts& facts, std::int64_t samples, const ImportRanks& ranks = {}) {
  for (Writer& writer : writers) {
    const std::vector<std::string> shards = ranks.gather([&] { return writer.finish_shards(); });
    static_cast<void>(ranks.on_first([&] {
      std::ranges::for_each(shards, [&](const std::string& text) { writer.take_shards(text); });
      writer.finish(facts);
      return std::string();
    }));
  }
  const auto in_turn = [&](const std::function<void()>& first, const std::function<void()>& all) {
    static_cast<void>(ranks.on_first([&] { return first(), std::string(); }));
    static_cast<void>(ranks.gather([&] { return all(), std::string(); }));
  };
  in_turn([&] { output->prepare(); },
          [&] { std::ranges::for_each(writers, &Writer::publish_shards); });
  in_turn(
      [&] {
        output->sync();
        std::for_each(writers.rbegin(), writers.rend(),
                      [](Writer& writer) { writer.publish_master(); });
        output->sync();
      },
      [] {});

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
