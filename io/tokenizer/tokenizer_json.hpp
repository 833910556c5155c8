#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tokenizer/byte_pairs.hpp"

namespace strata::io {

/// Byte pairs in a Hugging Face tokenizer.json. Its post_processor, truncation and padding are not
/// applied. `path` is for messages.
/// Throws: Error(kData) that names what is malformed or not supported.
[[nodiscard]] BytePairTables parse_tokenizer_json(std::string_view text,
                                                  const std::filesystem::path& path);

/// The reverse. Special tokens are in the vocabulary too.
[[nodiscard]] std::string tokenizer_json(const BytePairTables& tables);

}  // namespace strata::io
