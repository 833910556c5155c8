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

/// The config.json of a model; `separator`: the token between documents, -1 without one.
/// Pre: architecture_of(model).
[[nodiscard]] nlohmann::ordered_json huggingface_config(const nn::PublishedModel& model,
                                                        io::StoredType type,
                                                        std::int64_t separator);

}  // namespace strata::train
