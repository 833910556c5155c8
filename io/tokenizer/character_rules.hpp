#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tokenizer/byte_pairs.hpp"

namespace strata::io {

/// Sets the rules of tables with tokens of characters: `rules` has the parts normalizer,
/// pre_tokenizer and decoder of a tokenizer.json, and of its model byte_fallback, fuse_unk,
/// ignore_merges and unk_id. CharacterRules::text keeps them. Pre: tokens, merges and scores are
/// set. Throws: Error(kData) that begins with `name` and names what is malformed or not supported.
void set_rules(const nlohmann::json& rules, const std::string& name, BytePairTables& tables);

}  // namespace strata::io
