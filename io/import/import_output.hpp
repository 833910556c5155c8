#pragma once

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "strata/io/import.hpp"

#include "hdf5/hdf5_file.hpp"

namespace strata::io {

/// Throws: Error(kUsage) where the output holds a data set that may not be replaced.
void refuse_existing(const ImportOptions& options);
/// Removes at its end the directories on the path that were not there at its begin and hold
/// nothing.
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
/// Throws: Error(kData) where the output's disk has fewer bytes left.
void check_space(const ImportOptions& options, std::int64_t needed);
/// Removes the masters and shards of a data set.
void remove_existing(const std::filesystem::path& directory);

/// Gives the finished splits' files their final names. Train, the master that every use needs,
/// comes last.
template <typename Writer>
void publish(const ImportOptions& options, std::span<Writer> writers) {
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
}

}  // namespace strata::io
