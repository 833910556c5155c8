#pragma once

#include <filesystem>
#include <string_view>

#include "tokenizer/byte_pairs.hpp"

namespace strata::io {

/// Byte pairs in a file of ranks: lines with a token's bytes in base64 and its rank, as tiktoken
/// reads them. Special tokens follow the ranks: those of Llama 3 where the file has its 128,000
/// ranks and pattern, else "<|endoftext|>". `path` is for messages.
/// Throws: Error(kData) with the line that is malformed.
[[nodiscard]] BytePairTables parse_rank_file(std::string_view text, SplitPattern pattern,
                                             const std::filesystem::path& path);

}  // namespace strata::io
