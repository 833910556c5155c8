#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tokenizer/byte_pairs.hpp"

namespace strata::io {

/// Byte pairs in a Hugging Face tokenizer.json, without a separator. Its truncation and padding are
/// not applied. `path` is for messages.
/// Throws: Error(kData) that names what is malformed or not supported.
[[nodiscard]] BytePairTables parse_tokenizer_json(std::string_view text,
                                                  const std::filesystem::path& path);

/// The reverse. Special tokens are in the vocabulary too.
[[nodiscard]] std::string tokenizer_json(const BytePairTables& tables);

/// A Split of a pre_tokenizer. Throws: Error(kData) that begins with `name` for one that is
/// malformed or not supported.
[[nodiscard]] SplitStep split_of(const nlohmann::json& step, const std::string& name);

/// Steps as the name of a published expression, or as a JSON list of Split; and the reverse.
[[nodiscard]] std::string text_of(const std::vector<SplitStep>& splits);
[[nodiscard]] std::vector<SplitStep> splits_of(const std::string& text, const std::string& name);

}  // namespace strata::io
