#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "import/sample_source.hpp"
#include "import/split_files.hpp"

namespace strata::io {

/// Writes one split of samples: shards as the samples come, then the master.
class SplitWriter : public SplitFiles {
 public:
  /// Pre: samples > 0.
  SplitWriter(std::filesystem::path directory, std::string split, DatasetInfo info,
              std::int64_t samples, std::int64_t shard_bytes);

  void append(const SampleBatch& batch);
  /// Writes the master of `info` under its temporary name. Pre: all samples were appended.
  void finish(DatasetInfo info);

  /// Estimate of the bytes on disk, for a check of the free space.
  [[nodiscard]] static std::int64_t predicted_bytes(const DatasetInfo& info, std::int64_t samples);

 private:
  Shape lay_out_shard(hdf5::File& file, std::int64_t samples);

  DatasetInfo info_;  ///< shapes and types
  /// File offsets of the open shard's inputs and targets.
  std::int64_t inputs_offset_ = 0;
  std::int64_t targets_offset_ = 0;
  std::vector<std::uint64_t> checksums_;
};

}  // namespace strata::io
