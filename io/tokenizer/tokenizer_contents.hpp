#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "strata/io/tokenizer.hpp"

#include "hdf5/hdf5_file.hpp"
#include "tokenizer/byte_pairs.hpp"

namespace strata::io {

/// What a tokenizer knows; which parts, its kind says.
struct TokenizerContents {
  TokenizerKind kind = TokenizerKind::kBytes;
  std::vector<char32_t> characters;                 ///< by id
  std::unordered_map<char32_t, std::uint32_t> ids;  ///< of characters
  std::optional<BytePairs> pairs;
};

/// XXH3 over everything that tells two tokenizers apart.
[[nodiscard]] std::uint64_t tokenizer_checksum(const Tokenizer& tokenizer);

/// What write_tokenizer() adds to a master.
[[nodiscard]] std::int64_t stored_bytes(const Tokenizer& tokenizer);

/// Writes a tokenizer's tables into a master.
void write_tokenizer(hdf5::File& file, const Tokenizer& tokenizer);

/// Reads GPT-2's encoder.json and vocab.bpe.
/// Throws: Error(kData) where one is malformed or they do not fit each other.
[[nodiscard]] BytePairTables read_gpt2_files(const std::filesystem::path& encoder,
                                             const std::filesystem::path& merges);

}  // namespace strata::io
