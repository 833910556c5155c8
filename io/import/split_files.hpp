#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/core/hash.hpp"
#include "strata/io/dataset.hpp"

#include "dataset/dataset_parts.hpp"
#include "files/posix_file.hpp"
#include "hdf5/hdf5_file.hpp"

namespace strata::io {

/// The files of one split while they are written: shard after shard, the master at the end, all
/// under temporary names until they are published. Samples are tokens where the split holds those.
class SplitFiles {
 public:
  SplitFiles(std::filesystem::path directory, std::string split);

  [[nodiscard]] std::filesystem::path master_path() const;
  /// Those that were begun; the checksum of one is known when it is complete.
  [[nodiscard]] const std::vector<ShardInfo>& shards() const { return shards_; }

  /// Begins a shard. `lay_out` makes its data sets but for the checksums, whose shape is given.
  /// Pre: no shard is open; samples > 0.
  void open_shard(std::int64_t samples, const Shape& checksums,
                  const std::function<void(hdf5::File&)>& lay_out);
  [[nodiscard]] bool shard_is_open() const { return shard_.has_value(); }
  /// Of the open shard. Pre: there is one.
  [[nodiscard]] std::int64_t shard_written() const { return shard_->written; }
  [[nodiscard]] std::int64_t shard_left() const { return shard_->samples - shard_->written; }

  /// Writes into the open shard, past HDF5: a full disk is an ordinary error then, and not one
  /// inside HDF5's cache.
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// Says that the next samples of the open shard were written, and their checksums. Closes the
  /// shard that they complete.
  void add_written(std::int64_t samples, std::span<const std::uint64_t> checksums);

  /// Begins the master.
  [[nodiscard]] hdf5::File begin_master();
  /// Adds the list of shards and the checksum over all of `info`, and puts the master on disk.
  void finish_master(hdf5::File& master, DatasetInfo info) const;

  void publish_shards();
  void publish_master();

 private:
  struct OpenShard {
    PosixFile file;
    std::int64_t samples = 0;
    std::int64_t written = 0;
    std::int64_t checksums_offset = 0;  ///< of the next
    std::int64_t checksum_offset = 0;
    StreamingHash hash;
  };

  std::filesystem::path directory_;
  std::string split_;
  std::optional<OpenShard> shard_;
  std::vector<ShardInfo> shards_;
  std::vector<PendingFile> files_;
  std::optional<PendingFile> master_;
};

}  // namespace strata::io
