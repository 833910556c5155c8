#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace strata::io {

/// Token type of a Megatron .bin file.
struct MegatronIndex {
  std::int64_t id_bytes = 0;
  bool is_signed = false;
  /// The end of each document in tokens.
  std::vector<std::int64_t> document_ends = {};
};

/// The .bin path of a pair given by its .bin path, its .idx path or their common prefix.
[[nodiscard]] std::filesystem::path megatron_bin(const std::filesystem::path& file);

/// Reads the .idx beside a .bin and checks that it describes `bin_bytes` bytes of contiguous
/// tokens.
/// Throws: Error(kData).
/// Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
[[nodiscard]] MegatronIndex check_megatron_index(const std::filesystem::path& bin,
                                                 std::int64_t bin_bytes);

}  // namespace strata::io
