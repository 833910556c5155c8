#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/io/dataset.hpp"
#include "strata/io/import.hpp"

#include "files/manifest.hpp"
#include "files/posix_file.hpp"
#include "hdf5/hdf5_file.hpp"
#include "import/pending_file.hpp"

namespace strata::io {

/// The files of one split while they are written: all shards in any order, then the master, all
/// under temporary names until they are published. Several ranks take turns at the shards; rank 0
/// writes the master. "Samples" are tokens in a split of tokens.
class SplitFiles {
 public:
  /// Samples of the split, and of this rank's shards those not written yet.
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] std::int64_t left() const { return left_; }

  [[nodiscard]] std::filesystem::path master_path() const;

  /// Puts this rank's shards on disk, each with the checksum of its checksums. Returns: what
  /// take_shards() needs. Pre: left() == 0.
  [[nodiscard]] std::string finish_shards();
  /// What finish_shards() returned on any rank.
  void take_shards(const std::string& text);
  /// Renames this rank's shards, and the manifest, to their final names.
  void publish_shards();
  void publish_master();

 protected:
  /// File offsets of the data sets of one shard.
  struct ShardOffsets {
    std::vector<std::int64_t> data;  ///< in the order in which they were laid out
    std::int64_t checksums = 0;
    std::int64_t checksum = 0;
  };
  /// Where a sample lies.
  struct ShardPlace {
    std::size_t shard = 0;
    std::int64_t local = 0;  ///< its number in the shard
    std::int64_t left = 0;   ///< samples of the shard from this one on
  };
  /// Creates the data sets of a shard of so many samples, all but the checksums, and appends their
  /// offsets; returns the shape of the checksums.
  using LayOut =
      std::function<Shape(hdf5::File&, std::int64_t samples, std::vector<std::int64_t>&)>;

  /// `samples` in shards of `shard_samples`; the last shard may hold fewer. Pre: both > 0.
  SplitFiles(std::filesystem::path directory, std::string split, std::int64_t samples,
             std::int64_t shard_samples, const ImportRanks& ranks = {});
  /// Creates this rank's shards.
  void lay_out(const LayOut& lay_out);

  /// The samples of each of this rank's shards.
  [[nodiscard]] std::vector<grid::Range> own() const;
  /// Pre (of both): 0 <= sample < samples(), in a shard of this rank.
  [[nodiscard]] ShardPlace place_of(std::int64_t sample) const;
  [[nodiscard]] const ShardOffsets& offsets_of(const ShardPlace& place) const {
    return offsets_[place.shard];
  }
  /// Writes into a shard with pwrite and not through HDF5, so that a full disk is reported at once
  /// and not by HDF5's cache.
  void write_at(const ShardPlace& place, std::int64_t offset, std::span<const std::byte> bytes);
  /// Records that so many samples were written.
  void add_written(std::int64_t samples) { left_ -= samples; }

  /// Begins the master. Pre: take_shards() was called for all ranks.
  [[nodiscard]] hdf5::File begin_master(Task task, std::string_view source);
  /// Creates a virtual data set in the master that concatenates one data set of all shards, which
  /// has a row of this shape for so many samples.
  void write_virtual(hdf5::File& master, const char* name, const hdf5::ElementType& type,
                     const Shape& row_shape, std::int64_t samples_per_row = 1) const;
  /// Writes the list of shards and the checksum of `info`, then the manifest, and calls fsync.
  void finish_master(hdf5::File& master, DatasetInfo info);

 private:
  [[nodiscard]] ManifestEntry finish_shard(std::size_t index);

  std::filesystem::path directory_;
  std::string split_;
  std::int64_t samples_;
  std::int64_t left_ = 0;
  std::int64_t shard_samples_;
  std::size_t rank_;
  std::size_t ranks_;
  std::vector<ShardInfo> shards_;
  std::vector<ShardOffsets> offsets_;
  std::vector<std::vector<grid::Range>> payload_;
  std::vector<ManifestEntry> manifest_;
  std::vector<std::optional<PendingFile>> files_;  ///< by shard; empty where another rank writes it
  std::optional<PendingFile> manifest_file_;
  std::optional<PendingFile> master_;
  PosixFile open_;
  std::size_t open_shard_ = ~std::size_t{0};
};

}  // namespace strata::io
