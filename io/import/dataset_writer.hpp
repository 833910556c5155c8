#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "import/sample_source.hpp"
#include "import/split_files.hpp"

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
  [[nodiscard]] SplitFiles& files() { return files_; }

  void append(const SampleBatch& batch);
  /// Writes the master under its temporary name. Pre: all samples were appended.
  void finish(const MasterFacts& facts);

  /// Bytes on disk that a split will take, near enough to see that a disk is too small.
  [[nodiscard]] static std::int64_t predicted_bytes(const SampleLayout& layout,
                                                    std::int64_t samples);

 private:
  void open_shard();

  SplitFiles files_;
  SampleLayout layout_;
  std::int64_t samples_;
  std::int64_t shard_samples_;
  std::int64_t written_ = 0;
  /// Where the open shard has its inputs and targets.
  std::int64_t inputs_offset_ = 0;
  std::int64_t targets_offset_ = 0;
  std::vector<std::uint64_t> checksums_;
};

}  // namespace strata::io
