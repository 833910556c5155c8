#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strata/core/hash.hpp"
#include "strata/io/dataset.hpp"

#include "dataset_parts.hpp"
#include "posix_file.hpp"
#include "sample_source.hpp"

namespace strata::io {

/// What a master says besides what its samples are.
struct MasterFacts {
  std::string source;
  std::int64_t classes = 0;
  std::vector<double> mean;
  std::vector<double> deviation;
};

/// Writes one split of a data set: shards as samples come, the master at the end.
class SplitWriter {
 public:
  /// Pre: samples > 0.
  SplitWriter(std::filesystem::path directory, std::string split, SampleLayout layout,
              std::int64_t samples, std::int64_t shard_bytes);

  [[nodiscard]] std::int64_t samples_left() const { return samples_ - written_; }
  [[nodiscard]] std::filesystem::path master_path() const;

  void append(const SampleBatch& batch);
  /// Writes the master under its temporary name. Pre: all samples were appended.
  void finish(const MasterFacts& facts);
  void publish_shards();
  void publish_master();

  /// Bytes on disk that a split will take, near enough to see that a disk is too small.
  [[nodiscard]] static std::int64_t predicted_bytes(const SampleLayout& layout,
                                                    std::int64_t samples);

 private:
  struct OpenShard {
    PosixFile file;
    std::int64_t samples = 0;
    std::int64_t written = 0;
    std::int64_t inputs_offset = 0;
    std::int64_t targets_offset = 0;
    std::int64_t checksums_offset = 0;
    std::int64_t checksum_offset = 0;
    StreamingHash hash;
  };

  void open_shard();
  void close_shard();

  std::filesystem::path directory_;
  std::string split_;
  SampleLayout layout_;
  std::int64_t samples_;
  std::int64_t shard_samples_;
  std::int64_t written_ = 0;
  std::optional<OpenShard> shard_;
  std::vector<ShardInfo> shards_;
  std::vector<PendingFile> files_;
  std::optional<PendingFile> master_;
  std::vector<std::uint64_t> checksums_;
};

}  // namespace strata::io
