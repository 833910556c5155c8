#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/hash.hpp"
#include "strata/io/dataset.hpp"

#include "files/manifest.hpp"
#include "files/posix_file.hpp"
#include "hdf5/hdf5_file.hpp"
#include "import/pending_file.hpp"

namespace strata::io {

/// The files of one split while they are written: shard after shard, then the master, all under
/// temporary names until they are published. "Samples" are tokens in a split of tokens.
class SplitFiles {
 public:
  /// Samples of the split, and those not written yet.
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] std::int64_t left() const { return left_; }

  [[nodiscard]] std::filesystem::path master_path() const;

  /// Renames the shards and the manifest to their final names.
  void publish_shards();
  void publish_master();

 protected:
  /// `samples` in shards of `shard_samples`; the last shard may hold fewer. Pre: both > 0.
  SplitFiles(std::filesystem::path directory, std::string split, std::int64_t samples,
             std::int64_t shard_samples);

  /// Opens the next shard unless one is open. `lay_out` creates the data sets of a shard of so many
  /// samples, all but the checksums, and returns the shape of the checksums. Pre: left() > 0.
  void require_shard(const std::function<Shape(hdf5::File&, std::int64_t samples)>& lay_out);
  /// Of the open shard. Pre: there is one.
  [[nodiscard]] std::int64_t shard_written() const { return shard_->written; }
  [[nodiscard]] std::int64_t shard_left() const { return shard_->samples - shard_->written; }

  /// Writes into the open shard with pwrite and not through HDF5, so that a full disk is reported
  /// at once and not by HDF5's cache.
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// Records that the next samples of the open shard are written and writes their checksums. Closes
  /// the shard once it is complete.
  void add_written(std::int64_t samples, std::span<const std::uint64_t> checksums);

  /// Begins the master. Pre: left() == 0.
  [[nodiscard]] hdf5::File begin_master(Task task, std::string_view source);
  /// Creates a virtual data set in the master that concatenates one data set of all shards, which
  /// has a row of this shape for so many samples.
  void write_virtual(hdf5::File& master, const char* name, const hdf5::ElementType& type,
                     const Shape& row_shape, std::int64_t samples_per_row = 1) const;
  /// Writes the list of shards and the checksum of `info`, then the manifest, and calls fsync.
  void finish_master(hdf5::File& master, DatasetInfo info);

 private:
  struct OpenShard {
    PosixFile file;
    std::int64_t samples = 0;
    std::int64_t written = 0;
    std::int64_t checksums_offset = 0;  ///< of the next
    std::int64_t checksum_offset = 0;
    StreamingHash hash;
    std::vector<grid::Range> payload;
  };

  std::filesystem::path directory_;
  std::string split_;
  std::int64_t samples_;
  std::int64_t left_;
  std::int64_t shard_samples_;
  std::optional<OpenShard> shard_;
  std::vector<ShardInfo> shards_;
  std::vector<ManifestEntry> manifest_;
  std::vector<PendingFile> files_;
  std::optional<PendingFile> master_;
};

}  // namespace strata::io
