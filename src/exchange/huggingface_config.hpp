#pragma once

#include <array>
#include <filesystem>

#include <nlohmann/json_fwd.hpp>

#include "strata/exchange/published_model.hpp"
#include "strata/io/tensor_files.hpp"
#include "strata/train/checkpointing.hpp"

namespace strata::exchange {

/// The model that a config.json describes, by the row of its model_type, or, of several parts, of
/// that of its text_config. Throws: Error(kData) naming the first key with a value that strata does
/// not compute, or that the row does not have.
[[nodiscard]] PublishedModel read_huggingface_config(const std::filesystem::path& path);

/// The model_type of the config.json that a checkpoint's model came with; empty without one.
[[nodiscard]] std::string came_as(const train::ModelTexts& texts);

/// The files beside the weights that say what strata does not compute: token ids, generation,
/// the chat template. A checkpoint keeps them and an export writes them again.
inline constexpr std::array kModelTexts{"config.json",           "generation_config.json",
                                        "tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json",     "chat_template.jinja",
                                        "chat_template.json"};

/// The texts of those that a directory has; of a config.json of several parts, that of the text
/// part alone. Throws: Error(kData) naming a file that is no JSON object or no UTF-8, or an
/// eos_token_id that is no token id and no list of them.
[[nodiscard]] train::ModelTexts read_model_texts(const std::filesystem::path& directory);

/// The tokens that begin and end a document; -1 without one.
struct DocumentEnds {
  std::int64_t begin = -1;
  std::int64_t end = -1;
};

/// The config.json of a model in its family: what describes its weights, and beside it all that the
/// one it came with says, but for keys of another family. `ends` are of its tokenizer, for a
/// config.json that names none. Pre: the family writes the model.
[[nodiscard]] nlohmann::json huggingface_config(const PublishedModel& model, io::StoredType type,
                                                const DocumentEnds& ends,
                                                const train::ModelTexts& texts);

/// The generation_config.json that belongs to a config.json.
[[nodiscard]] nlohmann::json generation_config(const nlohmann::json& config);

}  // namespace strata::exchange
