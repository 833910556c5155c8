#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "strata/core/dtype.hpp"
#include "strata/core/shape.hpp"
#include "strata/core/tensor.hpp"
#include "strata/grid/grid.hpp"

/// Checkpoints: tensors with global names and shapes, stored as flat slices in one part file per
/// writer. A master file presents the whole tensors; one rename commits the checkpoint. Format:
/// docs/formats.md.
namespace strata::io {

class Tokenizer;

/// The part of a tensor that one shard holds: indices [first, first + count) of `dimension`. The
/// whole tensor for kNotSplit.
struct ShardSlice {
  static constexpr std::int64_t kNotSplit = -1;

  std::int64_t dimension = kNotSplit;
  std::int64_t first = 0;
  std::int64_t count = 0;

  friend bool operator==(const ShardSlice&, const ShardSlice&) = default;
};

/// Row-major elements [range.begin, range.end) of a shard's part of a tensor, to be written by one
/// writer.
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

/// Location and checksum of one slice in a part file.
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

/// The contents of one part file. The writer of the master needs the records of all parts.
struct PartRecord {
  std::string file;
  std::int64_t bytes = 0;
  /// The id of the save that wrote it, which all parts of a checkpoint share; empty in checkpoints
  /// of earlier versions.
  std::string save;
  std::vector<SliceRecord> slices;
  /// XXH3 of the bytes outside the slices, and the ranges of bytes of the slices, for the manifest;
  /// a reader leaves them empty.
  std::uint64_t header_checksum = 0;
  std::vector<grid::Range> payload;

  friend bool operator==(const PartRecord&, const PartRecord&) = default;
};

/// Serialises a record to one line of text, to be sent to the writer of the master, and back.
[[nodiscard]] std::string text_of(const PartRecord& record);
/// Throws: Error(kCheckpoint) where the text is not a record.
[[nodiscard]] PartRecord part_record_of(const std::string& text);

/// Creates a hidden directory for the parts of a checkpoint, and `root` where it is missing; its
/// name holds a random id of this save. Deletes the directories of earlier attempts at the same
/// step. One process calls it, before any write_part.
/// Throws: Error(kCheckpoint) where the directory cannot be created.
std::filesystem::path begin_checkpoint(const std::filesystem::path& root, std::int64_t step);

/// Writes one part file into the directory of begin_checkpoint and calls fsync. Empty slices are
/// skipped.
/// Pre: each slice lies within its shard and each shard within its tensor; a slice holds
/// range.count() elements; names are path-like ("weights/dense1.weight"); part indices are unique.
/// Throws: Error(kCheckpoint) where the file cannot be written; the message gives the bytes needed,
/// and the file is removed.
PartRecord write_part(const std::filesystem::path& directory, std::int64_t part_index,
                      std::span<const TensorSlice> slices);

/// Writes the master beside the parts of one save and commits the checkpoint with one rename; it
/// replaces an earlier checkpoint of the same step. All files are synced on return.
/// The master stores `tokenizer`, where given, in the layout of a data set's master. One process
/// calls it, after all write_part. It calls `before_commit`, which may throw, before it makes the
/// checkpoint visible.
/// Returns: the checkpoint's directory.
/// Throws: Error(kCheckpoint) where a part is missing or of another save, where a tensor is not
/// covered exactly once (shards split one dimension without gaps, ranges cover each shard) or where
/// the master cannot be written; earlier checkpoints stay.
std::filesystem::path commit_checkpoint(
    const std::filesystem::path& root, std::int64_t step, std::span<const PartRecord> records,
    const nlohmann::json& metadata, const Tokenizer* tokenizer = nullptr,
    const std::function<void()>& before_commit = [] {});

/// The step that a checkpoint directory's name holds; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> step_of_name(const std::filesystem::path& directory);

/// A committed checkpoint on disk.
struct CheckpointEntry {
  std::int64_t step = 0;
  std::filesystem::path directory;

  friend bool operator==(const CheckpointEntry&, const CheckpointEntry&) = default;
};

/// The committed checkpoints below `root`, newest (greatest step) first; empty where `root` does
/// not exist. Partial checkpoints of killed runs are not listed.
[[nodiscard]] std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& root);

/// Deletes what killed saves and deletions left. As prune_checkpoints() otherwise.
void delete_leftovers(const std::filesystem::path& root);

/// Deletes all but the `keep` newest checkpoints up to `newest_step`, those of multiples of
/// `keep_every` steps (0: none) and that of `best_step`, and partial or half-deleted ones.
/// Checkpoints of later steps stay: they belong to a run that was resumed from an earlier
/// checkpoint. A kill at any time leaves no damaged checkpoint visible. One process calls it, while
/// no checkpoint is being written. Pre: keep >= 1. Throws: Error(kCheckpoint) where something
/// cannot be deleted.
void prune_checkpoints(const std::filesystem::path& root, std::int64_t newest_step,
                       std::int64_t keep, std::int64_t keep_every = 0, std::int64_t best_step = -1);

/// A committed checkpoint, open for reading. Several processes may read it at the same time; one
/// object serves one thread.
class Checkpoint {
 public:
  /// Opens the checkpoint in `directory`.
  /// Throws: Error(kCheckpoint) where the master is missing, damaged, of another format or version,
  /// or of another step than the directory's name says, or where a part is missing or has another
  /// size than was written; FileSystemError(kCheckpoint) where that cannot be found out now.
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& directory);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] std::filesystem::path master() const;
  /// What a user should know about a checkpoint that opens; mostly empty.
  [[nodiscard]] std::string warning() const;
  [[nodiscard]] std::int64_t step() const { return step_; }
  /// The metadata passed to commit_checkpoint.
  [[nodiscard]] const nlohmann::json& metadata() const { return *metadata_; }
  /// Sorted by name.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// The tensor of this name; null without one.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  [[nodiscard]] std::int64_t part_count() const { return static_cast<std::int64_t>(parts_.size()); }

  /// Reads all slices of one part and compares their checksums.
  /// Pre: 0 <= part < part_count().
  /// Throws: Error(kCheckpoint) naming the file and the tensor.
  void verify_part(std::int64_t part) const;
  /// Says that other processes have verified the parts that this one has not.
  void set_verified();

  /// Reads the row-major elements `range` of a shard's part of a tensor (of the whole tensor for
  /// the default shard) into `out`. The elements are gathered from all slices that hold them, so
  /// the split may differ from the one at writing. The first read of a slice verifies it, unless
  /// set_verified(). Pre: `out` is host memory of range.count() elements.
  /// Throws: Error(kCheckpoint) where the tensor is missing or has another shape than `shape` or
  /// another dtype than `out`, or where a part is damaged or cannot be read.
  void read(const std::string& name, const Shape& shape, const ShardSlice& shard,
            const grid::Range& range, TensorView out) const;

  /// What `checkpoint inspect` prints: step, parts, metadata, and a table of the tensors.
  [[nodiscard]] std::string describe() const;

 private:
  struct OpenParts;
  Checkpoint(std::filesystem::path directory, std::int64_t step, nlohmann::json metadata,
             std::vector<PartRecord> parts, std::unique_ptr<OpenParts> open_parts);
  // The tensor of this name. Throws: Error(kCheckpoint) for another shape or dtype.
  [[nodiscard]] const TensorInfo& tensor_as(const std::string& name, const Shape& shape,
                                            DType dtype) const;

  std::filesystem::path directory_;
  std::int64_t step_ = 0;
  std::unique_ptr<nlohmann::json> metadata_;
  std::vector<PartRecord> parts_;
  std::vector<TensorInfo> tensors_;
  std::unique_ptr<OpenParts> open_parts_;
};

}  // namespace strata::io
