#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "strata/io/tokenizer.hpp"

#include "hdf5/hdf5_file.hpp"
#include "tokenizer/byte_pairs.hpp"
#include "tokenizer/sentence_pieces.hpp"
#include "tokenizer/text_encoder.hpp"

namespace strata::io {

/// The data of a tokenizer; its kind determines which members are set.
struct TokenizerContents {
  TokenizerKind kind = TokenizerKind::kBytes;
  std::vector<char32_t> characters;                 ///< by id
  std::unordered_map<char32_t, std::uint32_t> ids;  ///< of characters
  std::optional<BytePairs> pairs;
  std::unique_ptr<const SentencePieces> pieces;
  DocumentFrame pieces_frame;
  std::vector<AddedToken> pieces_added;  ///< by id; byte pairs have theirs in their tables

  [[nodiscard]] std::int64_t pieces_ids() const {
    return ids_with(pieces_added, pieces->vocabulary());
  }
  [[nodiscard]] const std::vector<AddedToken>& added() const {
    return pairs ? pairs->tables().added : pieces_added;
  }
};

/// An encoder for the text of documents. Pre: the contents outlive it; they are no characters.
[[nodiscard]] std::unique_ptr<TextEncoder> text_encoder(const TokenizerContents& contents,
                                                        Markers markers);

/// Upper bound on the bytes that write_tokenizer() adds to a master.
[[nodiscard]] std::int64_t stored_bytes(const Tokenizer& tokenizer);

/// Writes a tokenizer's tables into a master.
void write_tokenizer(hdf5::File& file, const Tokenizer& tokenizer);

/// Reads GPT-2's encoder.json and vocab.bpe.
/// Throws: Error(kData) where a file is malformed or the files do not match.
[[nodiscard]] BytePairTables read_gpt2_files(const std::filesystem::path& encoder,
                                             const std::filesystem::path& merges);

}  // namespace strata::io
