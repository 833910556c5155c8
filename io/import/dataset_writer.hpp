#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "import/sample_source.hpp"
#include "import/split_files.hpp"

namespace strata::io {

/// Writes one split of samples: the shards, then the master.
class SplitWriter : public SplitFiles {
 public:
  /// Pre: samples > 0.
  SplitWriter(std::filesystem::path directory, std::string split, DatasetInfo info,
              std::int64_t samples, std::int64_t shard_bytes);

  /// Writes samples of the batch from `first` on, each to its place in the split; ascending places
  /// that lie side by side are written at once.
  void write(const SampleBatch& batch, std::int64_t first, std::span<const std::int64_t> places);
  /// Writes the master of `info` under its temporary name. Pre: all samples were appended.
  void finish(DatasetInfo info);

  /// Estimate of the bytes on disk, for a check of the free space.
  [[nodiscard]] static std::int64_t predicted_bytes(const DatasetInfo& info, std::int64_t samples);

 private:
  DatasetInfo info_;  ///< shapes and types
  std::vector<std::uint64_t> checksums_;
};

}  // namespace strata::io
