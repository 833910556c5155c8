#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "strata/exchange/published_model.hpp"
#include "strata/io/checkpoint.hpp"

namespace strata::exchange {

/// The low-rank adapters (nn::AdapterOptions) of a checkpoint, for export.
class CheckpointAdapters {
 public:
  /// Throws: Error(kUsage) where layers have adapters of different rank or alpha.
  explicit CheckpointAdapters(const io::Checkpoint& checkpoint);

  [[nodiscard]] bool empty() const { return rank_ == 0; }
  /// Adds alpha / rank B A to rows of a parameter that has an adapter. Shapes: rows.rows.count() x
  /// inputs, float32 or float64.
  void merge(const ParameterRows& rows, const TensorView& weights) const;
  /// The adapters of these weights under the names of PEFT, as in
  /// "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"; A is that of the whole
  /// parameter. Source: huggingface/peft, utils/save_and_load.py.
  [[nodiscard]] std::vector<PublishedTensor> tensors(
      std::span<const PublishedTensor> weights) const;
  /// PEFT's adapter_config.json: the one that the adapters came with, where it still describes
  /// them. Its target_modules are ends of names that no module without an adapter has.
  /// Source: huggingface/peft, tuners/lora/config.py.
  [[nodiscard]] nlohmann::json config(std::span<const PublishedTensor> weights) const;

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

}  // namespace strata::exchange
