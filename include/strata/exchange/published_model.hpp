#pragma once

#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/nn/transformer.hpp"

namespace strata::exchange {

/// Transformers whose weights are published under common names.
enum class Architecture { kGpt2, kLlama };

constexpr auto enum_names(Architecture) {
  return names_in_order("gpt2", "llama");
}

/// Of a model that is read; larger numbers are damage.
inline constexpr std::int64_t kMostBlocks = 10'000;

/// A transformer with the names of a preset's layers.
struct PublishedModel {
  nn::TransformerOptions options;  ///< resolved
  double epsilon = 1e-5;           ///< of every norm

  friend bool operator==(const PublishedModel&, const PublishedModel&) = default;
};

/// GPT-2: layer norms, learned positions, gelu or relu. Llama: RMS norms, rotary positions, swiglu,
/// no biases. Throws: Error(kUsage) for another combination.
[[nodiscard]] Architecture architecture_of(const PublishedModel& model);

/// Its `layer =` lines.
[[nodiscard]] std::vector<std::string> layer_lines(const PublishedModel& model);

/// The model of these lines. The context is the number of learned positions, or `context`.
/// Throws: Error(kUsage) naming the first line that GPT-2 and Llama do not have.
[[nodiscard]] PublishedModel published_model_of(const std::vector<std::string>& lines,
                                                std::int64_t context, std::int64_t vocabulary);

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

/// All weights under the names of Hugging Face's GPT-2 ("transformer.h.0.ln_1.weight") or Llama
/// ("model.layers.0.input_layernorm.weight"); `linear` is the order of GPT-2's linear layers.
/// Source: huggingface/transformers, models/gpt2 and models/llama.
[[nodiscard]] std::vector<PublishedTensor> published_tensors(const PublishedModel& model,
                                                             MatrixOrder linear);

}  // namespace strata::exchange
