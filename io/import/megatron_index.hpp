#pragma once

#include <cstdint>
#include <filesystem>

namespace strata::io {

/// How a Megatron .bin holds its tokens.
struct MegatronIndex {
  std::int64_t id_bytes = 0;
  bool is_signed = false;
};

/// The .bin of a pair that is named by its .bin, its .idx or without either.
[[nodiscard]] std::filesystem::path megatron_bin(const std::filesystem::path& file);

/// Reads the .idx beside a .bin and checks that it describes `bin_bytes` bytes of tokens that
/// follow each other.
/// Throws: Error(kData).
/// Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
[[nodiscard]] MegatronIndex check_megatron_index(const std::filesystem::path& bin,
                                                 std::int64_t bin_bytes);

}  // namespace strata::io
