#pragma once

#include <filesystem>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "strata/io/tensor_files.hpp"
#include "strata/nn/published_model.hpp"

namespace strata::train {

/// The model that a config.json describes. Throws: Error(kData) naming the key whose value strata
/// does not compute.
[[nodiscard]] nn::PublishedModel read_huggingface_config(const std::filesystem::path& path);

/// The tokens that begin and end a document; -1 without one.
struct DocumentEnds {
  std::int64_t begin = -1;
  std::int64_t end = -1;
};

/// `bos_token_id` and `eos_token_id` of a JSON file of Hugging Face's.
void set_ends(const DocumentEnds& ends, nlohmann::ordered_json& json);

/// The config.json of a model. Pre: architecture_of(model).
[[nodiscard]] nlohmann::ordered_json huggingface_config(const nn::PublishedModel& model,
                                                        io::StoredType type,
                                                        const DocumentEnds& ends);

}  // namespace strata::train
