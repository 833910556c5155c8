#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "strata/core/dtype.hpp"
#include "strata/core/shape.hpp"
#include "strata/core/tensor.hpp"
#include "strata/grid/grid.hpp"

/// Checkpoints: tensors with global names and shapes, stored as flat slices in one file a writer,
/// shown whole by a master file, committed by one rename. Format: docs/formats.md.
namespace strata::io {

class Tokenizer;

/// The part of a tensor that one shard holds: those elements whose index of `dimension` is one of
/// [first, first + count). The whole tensor where the dimension is kNotSplit.
struct ShardSlice {
  static constexpr std::int64_t kNotSplit = -1;

  std::int64_t dimension = kNotSplit;
  std::int64_t first = 0;
  std::int64_t count = 0;

  friend bool operator==(const ShardSlice&, const ShardSlice&) = default;
};

/// Row-major elements [range.begin, range.end) of a shard's part of a tensor, as one writer hands
/// them over.
struct TensorSlice {
  std::string name;
  Shape global_shape;
  grid::Range range;
  /// range.count() elements in host memory, float32 or float64, of any shape.
  ConstTensorView data;
  ShardSlice shard;
};

/// A tensor of a checkpoint.
struct TensorInfo {
  std::string name;
  Shape shape;
  DType dtype = DType::kFloat32;

  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// Where a part file holds one slice.
struct SliceRecord {
  TensorInfo tensor;
  ShardSlice shard;
  /// Row-major elements of the shard's part.
  grid::Range range;
  /// The name of the data set in the part file.
  std::string dataset;
  /// XXH3 of the slice's little-endian bytes.
  std::uint64_t checksum = 0;

  friend bool operator==(const SliceRecord&, const SliceRecord&) = default;
};

/// What a part file holds; the writer of the master needs those of all parts.
struct PartRecord {
  std::string file;
  std::int64_t bytes = 0;
  std::vector<SliceRecord> slices;

  friend bool operator==(const PartRecord&, const PartRecord&) = default;
};

/// A record as one line of text, to be sent to the writer of the master, and back.
[[nodiscard]] std::string text_of(const PartRecord& record);
/// Throws: Error(kCheckpoint) where the text is no record.
[[nodiscard]] PartRecord part_record_of(const std::string& text);

/// Makes the hidden directory that the parts of a checkpoint are written to, `root` too where it is
/// missing; removes what an earlier attempt at the same step left. One caller, before any
/// write_part.
/// Throws: Error(kCheckpoint) where it cannot be made.
std::filesystem::path begin_checkpoint(const std::filesystem::path& root, std::int64_t step);

/// The directory that begin_checkpoint makes.
[[nodiscard]] std::filesystem::path partial_directory(const std::filesystem::path& root,
                                                      std::int64_t step);

/// Writes one part file and puts it on disk. Slices without elements are left out.
/// Pre: slices lie within their shards and these within their tensors; slices hold as many elements
/// as their ranges say; names are path-like ("weights/dense1.weight"); part indices are used once.
/// Throws: Error(kCheckpoint) where it cannot be written; the message says how many bytes it needed
/// and the file is gone.
PartRecord write_part(const std::filesystem::path& directory, std::int64_t part_index,
                      std::span<const TensorSlice> slices);

/// Writes the master of the parts in partial_directory(root, step) and makes the checkpoint visible
/// by one rename, in place of an earlier one of the same step; everything is on disk on return. The
/// master holds `tokenizer`, where given, as the master of a data set does. One caller, after all
/// write_part.
/// Returns: the checkpoint's directory.
/// Throws: Error(kCheckpoint) where a part is missing, where a tensor is not covered exactly once
/// (by shards that divide one dimension without gaps, and by ranges within each) or where it cannot
/// be written; earlier checkpoints stay.
std::filesystem::path commit_checkpoint(const std::filesystem::path& root, std::int64_t step,
                                        std::span<const PartRecord> records,
                                        const nlohmann::json& metadata,
                                        const Tokenizer* tokenizer = nullptr);

/// A committed checkpoint on disk.
struct CheckpointEntry {
  std::int64_t step = 0;
  std::filesystem::path directory;

  friend bool operator==(const CheckpointEntry&, const CheckpointEntry&) = default;
};

/// The committed checkpoints below `root`, newest (greatest step) first; none where there is no
/// such directory. What a killed run left half-written is not among them.
[[nodiscard]] std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& root);

/// Deletes all but the `keep` newest checkpoints up to `newest_step` and everything left
/// half-written or half-deleted. Later steps are of a run that was given up for an earlier
/// checkpoint; they stay. At no moment does a kill leave a damaged checkpoint visible. One caller,
/// while no checkpoint is being written. Pre: keep >= 1. Throws: Error(kCheckpoint) where something
/// cannot be deleted.
void prune_checkpoints(const std::filesystem::path& root, std::int64_t newest_step,
                       std::int64_t keep);

/// A committed checkpoint, to be read. Several processes may read one at the same time; one object
/// is for one thread.
class Checkpoint {
 public:
  /// Opens the checkpoint in `directory`.
  /// Throws: Error(kCheckpoint) where the master is missing, foreign, of a newer version or
  /// damaged, or where a part is missing or is not as long as it was.
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& directory);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] std::filesystem::path master() const;
  [[nodiscard]] std::int64_t step() const { return step_; }
  /// What commit_checkpoint was given.
  [[nodiscard]] const nlohmann::json& metadata() const { return *metadata_; }
  /// In order of name.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }
  [[nodiscard]] std::int64_t part_count() const { return static_cast<std::int64_t>(parts_.size()); }

  /// Reads the slices of one part again and compares their checksums.
  /// Pre: 0 <= part < part_count().
  /// Throws: Error(kCheckpoint) naming the file and the tensor.
  void verify_part(std::int64_t part) const;

  /// Reads the row-major elements `range` of a shard's part of a tensor (of all of it for the
  /// default slice) into `out`, host memory of as many elements. However the tensor was split when
  /// it was written: what is asked for is put together from the slices that hold it.
  /// Throws: Error(kCheckpoint) where the checkpoint's tensor of this name is missing or has
  /// another shape or dtype than `shape` and out's, or where a part cannot be read.
  void read(const std::string& name, const Shape& shape, const ShardSlice& shard,
            const grid::Range& range, TensorView out) const;

  /// What `checkpoint inspect` prints: step, parts, metadata, and a table of the tensors.
  [[nodiscard]] std::string describe() const;

 private:
  struct OpenParts;
  // A slice and the part that holds it.
  struct Location {
    std::size_t part = 0;
    std::size_t slice = 0;
  };

  Checkpoint(std::filesystem::path directory, std::int64_t step, nlohmann::json metadata,
             std::vector<PartRecord> parts);
  [[nodiscard]] const SliceRecord& record_at(const Location& location) const {
    return parts_[location.part].slices[location.slice];
  }
  // All slices of a tensor, which is of this shape and dtype.
  [[nodiscard]] const std::vector<Location>& slices_of(const std::string& name, const Shape& shape,
                                                       DType dtype) const;

  std::filesystem::path directory_;
  std::int64_t step_ = 0;
  std::unique_ptr<nlohmann::json> metadata_;
  std::vector<PartRecord> parts_;
  std::vector<TensorInfo> tensors_;
  // By tensor, in order of shard and range.
  std::map<std::string, std::vector<Location>> slices_;
  std::unique_ptr<OpenParts> open_parts_;
};

}  // namespace strata::io
