#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/exchange/published_model.hpp"

#include "config_keys.hpp"

namespace strata::exchange {

/// Which rows of a parameter: all, or those of the queries, keys or values of every head.
enum class TensorRows { kAll, kQueries, kKeys, kValues };

/// Rows of a parameter without ".weight" or ".bias"; "N" stands for a block's number.
struct TensorPart {
  std::string parameter;
  TensorRows rows = TensorRows::kAll;
};

/// A published tensor without ".weight" or ".bias": parts, one below the other. Models that lack
/// the parameters lack the tensor.
struct TensorName {
  std::string name;
  std::vector<TensorPart> parts;
};

/// Transformers of one config.json, and of tensors of the same names.
struct Family {
  std::string_view model_type;
  std::string_view architecture;  ///< class of huggingface/transformers
  /// What the family computes, with the sizes of missing keys.
  nn::TransformerOptions defaults;
  std::vector<ConfigKey> keys;
  /// Words: keys that say nothing about weights or logits, beside those of all families.
  std::string_view ignored;
  /// In the order of an export; the first is the embedding.
  std::vector<TensorName> tensors;
  /// Of matrices in blocks.
  MatrixOrder linear = MatrixOrder::kOutputsFirst;
};

/// A model of several parts, whose config.json describes the text part as a family in
/// `text_config`.
struct Composite {
  std::string_view model_type;
  std::string_view family;   ///< the model_type of text_config
  std::string_view ignored;  ///< words: keys of the other parts, beside those of all composites
};

/// The table. Source: huggingface/transformers, models/*/configuration_*.py and modeling_*.py.
[[nodiscard]] const std::vector<Family>& families();

/// The row with this model_type, or null.
[[nodiscard]] const Family* find_family(std::string_view model_type);
[[nodiscard]] const Composite* find_composite(std::string_view model_type);
/// The composites, as "gemma3, mistral3".
[[nodiscard]] std::string composite_names();

/// The row of a model's family. Throws: Error(kUsage) as family_of().
[[nodiscard]] const Family& row_of(const PublishedModel& model);

/// Whether a key of the family's config.json says nothing about weights or logits.
[[nodiscard]] bool is_ignored(const Family& family, std::string_view key);
/// Whether it says nothing about the text part of a composite.
[[nodiscard]] bool is_ignored(const Composite& composite, std::string_view key);
/// Whether all families have the key.
[[nodiscard]] bool is_common(std::string_view key);

/// The names that published files have for a tensor of the model.
[[nodiscard]] std::vector<std::string> names_in_files(const PublishedModel& model,
                                                      const std::string& name);
/// The part of a composite to which a tensor belongs in files, as "vision_tower"; empty for tensors
/// of text and for other models.
[[nodiscard]] std::string_view other_part(const PublishedModel& model, std::string_view name);

}  // namespace strata::exchange
