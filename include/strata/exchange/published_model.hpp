#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/nn/parameter.hpp"
#include "strata/nn/transformer.hpp"

namespace strata::exchange {

/// Of a model that is read; larger numbers are damage.
inline constexpr std::int64_t kMostBlocks = 10'000;

/// A transformer with the names of a preset's layers.
struct PublishedModel {
  nn::TransformerOptions options;  ///< resolved
  /// The model_type of its config.json, which says the names of keys and tensors; empty: the first
  /// family that writes the model.
  std::string family = {};
  /// The model_type of a config.json of several parts, of which the model is the text part; empty:
  /// the config.json is the model's own.
  std::string part_of = {};

  friend bool operator==(const PublishedModel&, const PublishedModel&) = default;
};

/// The families that strata reads and writes, as "gpt2, llama, ...".
[[nodiscard]] std::string family_names();

/// The family in which a model goes out: the one that it came as if that can describe it, else the
/// first that can. Throws: Error(kUsage) where none can.
[[nodiscard]] std::string family_of(const PublishedModel& model, std::string_view came_as = {});

/// Its `layer =` lines.
[[nodiscard]] inline std::vector<std::string> layer_lines(const PublishedModel& model) {
  return nn::transformer_layers(model.options);
}

/// The model of these lines, without a family. The context is the number of learned positions, or
/// `context`. Throws: Error(kUsage) naming the first line that is not as transformer_layers()
/// writes it.
[[nodiscard]] PublishedModel published_model_of(const std::vector<std::string>& lines,
                                                std::int64_t context, std::int64_t vocabulary);

/// Whether layers compute the same with the same weights.
[[nodiscard]] bool have_same_weights(const std::vector<std::string>& lines,
                                     const std::vector<std::string>& others);

/// How a file stores the matrix of a linear layer. Hugging Face's GPT-2 stores inputs x outputs.
enum class MatrixOrder { kOutputsFirst, kInputsFirst };

/// Rows of a parameter, or elements of a vector.
struct ParameterRows {
  std::string parameter;
  Shape shape;  ///< of the whole parameter
  grid::Range rows;
};

/// A tensor of published weights: rows of parameters, one below the other.
struct PublishedTensor {
  std::string name;
  Shape shape;  ///< as stored: for kInputsFirst the transpose
  MatrixOrder order = MatrixOrder::kOutputsFirst;
  std::vector<ParameterRows> rows;
};

/// All weights under the names of the model's family, as GPT-2's "transformer.h.0.ln_1.weight" or
/// Llama's "model.layers.0.input_layernorm.weight"; `linear` is the order of GPT-2's linear layers.
/// Throws: Error(kUsage) as family_of(), for a model without a family.
[[nodiscard]] std::vector<PublishedTensor> published_tensors(const PublishedModel& model,
                                                             MatrixOrder linear);

}  // namespace strata::exchange
