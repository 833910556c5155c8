#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/io/checkpoint.hpp"

/// Names and checks that the writer and the reader of checkpoints share. Format: docs/formats.md.
namespace strata::io::checkpoint {

inline constexpr std::string_view kMasterFormat = "strata-checkpoint";
inline constexpr std::string_view kPartFormat = "strata-checkpoint-part";
inline constexpr std::int64_t kVersion = 2;
inline constexpr const char* kMasterFile = "master.h5";

/// Attributes of the master's and the parts' root, and of the slices.
inline constexpr const char* kStepAttribute = "step";
inline constexpr const char* kMetadataAttribute = "metadata";
inline constexpr const char* kSaveAttribute = "save";
inline constexpr const char* kChecksumAttribute = "checksum";
inline constexpr const char* kTensorAttribute = "tensor";
inline constexpr const char* kBeginAttribute = "begin";
inline constexpr const char* kShardAttribute = "shard";
/// The master's data set with one record per part; no tensor may have this name.
inline constexpr const char* kPartsDataset = "parts";
/// The group of a tokenizer's tables, as in the master of a data set; reserved as well.
inline constexpr const char* kTokenizerGroup = "text";

/// State of a checkpoint directory, given by its name.
enum class DirectoryState {
  kVisible,   ///< committed
  kPartial,   ///< being written
  kReplaced,  ///< committed, then replaced by a newer one of the same step
  kDeleted    ///< being deleted
};

[[nodiscard]] std::filesystem::path directory_of(const std::filesystem::path& root,
                                                 std::int64_t step, DirectoryState state,
                                                 std::string_view save = {});

/// The id of the save that writes a partial directory; empty for other names.
[[nodiscard]] std::string save_of(const std::filesystem::path& partial);

/// Renames the partial directory of `step` to the visible name and deletes the one it replaces.
void make_visible(const std::filesystem::path& partial, const std::filesystem::path& root,
                  std::int64_t step);

/// XXH3 of everything in the master but its virtual data sets.
[[nodiscard]] std::uint64_t master_checksum(std::int64_t step, const std::string& metadata,
                                            std::span<const std::string> records);

/// All slices of one tensor, each with its part.
struct TensorParts {
  TensorInfo tensor;
  struct Piece {
    const PartRecord* part;
    const SliceRecord* slice;
  };
  std::vector<Piece> pieces;
};

/// The tensors of a checkpoint sorted by name, their pieces, which refer to `records`, sorted by
/// shard and range.
/// Throws: Error(kCheckpoint) where two slices of a tensor disagree about its shape, dtype or split
/// dimension, or do not cover the tensor exactly once.
[[nodiscard]] std::vector<TensorParts> covered_tensors(std::span<const PartRecord> records);

}  // namespace strata::io::checkpoint
