#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strata/core/switch.hpp"
#include "strata/nn/layer.hpp"
#include "strata/nn/layer_line.hpp"
#include "strata/ops/row_norm.hpp"

#include "layers/shard_parts.hpp"

namespace strata::nn {

enum class NormKind { kNone, kLayerNorm, kRmsNorm };

constexpr auto enum_names(NormKind) {
  return names_in_order("none", "layer_norm", "rms_norm");
}

/// Mean and reciprocal standard deviation of every row; empty where a kind of norm has none.
template <typename Tensor>
struct NormStatistics {
  Tensor mean;
  Tensor rstd;
};

/// The statistics of rows [range).
[[nodiscard]] NormStatistics<TensorView> rows_at(const NormStatistics<TensorView>& statistics,
                                                 const grid::Range& range);

/// A normalisation of the last dimension, alone or at the beginning of a sublayer.
class NormPart {
 public:
  /// `first`: the index of its first parameter among the layer's.
  NormPart(NormKind kind, std::int64_t width, double epsilon, Switch bias, std::size_t first = 0)
      : kind_(kind), width_(width), epsilon_(epsilon), bias_(bias), first_(first) {}

  [[nodiscard]] NormKind kind() const { return kind_; }
  [[nodiscard]] std::int64_t parameter_count() const;
  /// weight, and for layer norms with one bias; named prefix + ".weight" and so on.
  [[nodiscard]] std::vector<ParameterSpec> parameters(const std::string& prefix) const;
  [[nodiscard]] NormStatistics<TensorSpec> statistics(std::int64_t rows, DType dtype) const;
  /// For the gradients of weights.
  [[nodiscard]] ShardParts<TensorSpec> workspace(const PassShape& pass) const;

  /// Shapes: x, y rows x width. `weights` are the layer's.
  void forward(ops::Context& context, std::span<const ParameterViews> weights,
               const ConstTensorView& x, const TensorView& y,
               const NormStatistics<TensorView>& statistics) const;
  /// dx = addend + the gradient, where dx is not empty; the addend may be empty. Gradients of
  /// weights sum those of each shard's share of the rows. With kTokens x and dy hold the own
  /// shards' rows. Communication: for the weights, with kTokens one all-gather over the tensor
  /// group.
  void backward(const LayerPass& pass, Wants wants, Placement placement, const ConstTensorView& x,
                const NormStatistics<TensorView>& statistics, const ConstTensorView& dy,
                const ConstTensorView& addend, const TensorView& dx,
                const ShardParts<TensorView>& workspace) const;

 private:
  void backward_weights(const LayerPass& pass, Placement placement, const ConstTensorView& x,
                        const NormStatistics<TensorView>& statistics, const ConstTensorView& dy,
                        const ShardParts<TensorView>& workspace) const;
  [[nodiscard]] ops::Center center() const {
    return kind_ == NormKind::kLayerNorm ? ops::Center::kMean : ops::Center::kZero;
  }

  NormKind kind_;
  std::int64_t width_;
  double epsilon_;
  Switch bias_;
  std::size_t first_;
};

/// The option epsilon=. Throws: Error(kUsage) where it is no number above 0.
[[nodiscard]] double take_epsilon(LayerLine& line);

}  // namespace strata::nn
