#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tokenizer/byte_pairs.hpp"

namespace strata::io {

inline constexpr std::string_view kSupported =
    "strata reads byte pairs of words that Split, Digits and ByteLevel make, and byte pairs and "
    "unigram models of characters in the form of SentencePiece's; convert the text to ids with the "
    "program that wrote the file, and import them with --format=tokens-...";

/// Byte pairs, or a unigram model, in a Hugging Face tokenizer.json, without a separator. Its
/// truncation and padding are not applied. `path` is for messages. Throws: Error(kData) that names
/// what is malformed or not supported.
[[nodiscard]] BytePairTables parse_tokenizer_json(std::string_view text,
                                                  const std::filesystem::path& path);

/// The reverse. Special tokens are in the vocabulary too.
[[nodiscard]] std::string tokenizer_json(const BytePairTables& tables);

/// The member of an object; null where it is absent or `object` is none.
[[nodiscard]] const nlohmann::json& member(const nlohmann::json& object, const char* name);
/// The member "type", if it is a text.
[[nodiscard]] std::string type_of(const nlohmann::json& part);
/// Whether a value turns an option off.
[[nodiscard]] bool is_off(const nlohmann::json& value);

/// An expression that matches a text.
[[nodiscard]] std::string expression_of(std::string_view text);

/// A Split of a pre_tokenizer. Throws: Error(kData) that begins with `name` for one that is
/// malformed or not supported.
[[nodiscard]] SplitStep split_of(const nlohmann::json& step, const std::string& name);

/// Steps as the name of a published expression, or as a JSON list of Split; and the reverse.
[[nodiscard]] std::string text_of(const std::vector<SplitStep>& splits);
[[nodiscard]] std::vector<SplitStep> splits_of(const std::string& text, const std::string& name);

}  // namespace strata::io
