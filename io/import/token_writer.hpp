#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "strata/io/tokenizer.hpp"

#include "import/split_files.hpp"

namespace strata::io {

/// What a master of tokens says besides the tokens.
struct TokenFacts {
  std::string source;
  std::int64_t vocabulary = 0;
  const Tokenizer* tokenizer = nullptr;  ///< none where it is not known
};

/// The type that ids of a vocabulary are stored in.
[[nodiscard]] DType token_dtype(std::int64_t vocabulary);

/// Writes one split of a token stream: shards as tokens come, the master at the end.
class TokenSplitWriter {
 public:
  /// Pre: tokens > 0.
  TokenSplitWriter(std::filesystem::path directory, std::string split, DType dtype,
                   std::int64_t tokens, std::int64_t shard_bytes);

  [[nodiscard]] std::int64_t tokens_left() const { return tokens_ - written_; }
  [[nodiscard]] SplitFiles& files() { return files_; }

  /// Pre: every id fits the dtype, and no more come than are left.
  void append(std::span<const std::uint32_t> ids);
  /// Writes the master under its temporary name. Pre: all tokens were appended.
  void finish(const TokenFacts& facts);

 private:
  void open_shard();
  /// Writes the block that was gathered; closes the shard that it completes.
  void write_block();

  SplitFiles files_;
  DType dtype_;
  std::int64_t tokens_;
  std::int64_t shard_tokens_;
  std::int64_t written_ = 0;  ///< or gathered in block_
  std::vector<std::byte> block_;
  std::int64_t tokens_offset_ = 0;  ///< of the open shard
};

}  // namespace strata::io
