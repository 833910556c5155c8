#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/byte_pairs.hpp"

namespace strata::io {

/// Byte pairs in a file of ranks: lines with a token's bytes in base64 and its rank, as tiktoken
/// reads them. Special tokens are those of the published file with that number of ranks, of Llama 3
/// with its pattern too; else "<|endoftext|>" follows. `path` is for messages.
/// Throws: Error(kData) with the line that is malformed.
[[nodiscard]] BytePairTables parse_rank_file(std::string_view text, const std::string& pattern,
                                             const std::filesystem::path& path);

/// The bytes of a text in base64 with its padding; nothing for another text.
[[nodiscard]] std::optional<std::string> from_base64(std::string_view text);

}  // namespace strata::io
