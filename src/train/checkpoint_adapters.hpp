#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "strata/io/checkpoint.hpp"
#include "strata/nn/published_model.hpp"

namespace strata::train {

/// The low-rank adapters (nn::AdapterOptions) of a checkpoint, for export.
class CheckpointAdapters {
 public:
  /// Throws: Error(kUsage) where layers have adapters of different rank or alpha.
  explicit CheckpointAdapters(const io::Checkpoint& checkpoint);

  [[nodiscard]] bool empty() const { return rank_ == 0; }
  /// Adds alpha / rank B A to rows of a parameter that has an adapter. Shapes: rows.rows.count() x
  /// inputs, float32 or float64.
  void merge(const nn::ParameterRows& rows, const TensorView& weights) const;
  /// The adapters of these weights under the names of PEFT, as in
  /// "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"; under strata's own for weights
  /// that have its names. A is that of the whole parameter. Source: huggingface/peft,
  /// utils/save_and_load.py.
  [[nodiscard]] std::vector<nn::PublishedTensor> tensors(
      std::span<const nn::PublishedTensor> weights, bool own_names) const;
  /// PEFT's adapter_config.json. Source: huggingface/peft, tuners/lora/config.py.
  [[nodiscard]] nlohmann::ordered_json config(std::span<const nn::PublishedTensor> weights) const;

 private:
  struct Matrices {
    std::string a;
    std::string b;
    Shape a_shape;
    Shape b_shape;
  };
  /// Of a parameter "x.weight"; empty names without an adapter.
  [[nodiscard]] Matrices matrices_of(const std::string& parameter) const;

  const io::Checkpoint& checkpoint_;
  std::int64_t rank_ = 0;
  double alpha_ = 0.0;
};

}  // namespace strata::train
