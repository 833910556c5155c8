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

/// The table. Source: huggingface/transformers, models/*/configuration_*.py and modeling_*.py.
[[nodiscard]] const std::vector<Family>& families();

/// The row with this model_type, or null.
[[nodiscard]] const Family* find_family(std::string_view model_type);

/// The row of a model's family. Throws: Error(kUsage) as family_of().
[[nodiscard]] const Family& row_of(const PublishedModel& model);

/// Whether a key of the family's config.json says nothing about weights or logits.
[[nodiscard]] bool is_ignored(const Family& family, std::string_view key);

}  // namespace strata::exchange
