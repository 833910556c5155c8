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

/// The options of a norm besides its kind.
struct NormOptions {
  double epsilon = 1e-5;
  Switch bias = Switch::kOn;  ///< of layer norms
  /// Whether an RMS norm multiplies by 1 + weight, which then begins at zero.
  Switch unit_offset = Switch::kOff;
};

/// The initial value of an RMS norm's weight, and what ops take of it.
[[nodiscard]] constexpr Initializer norm_initializer(const NormOptions& options) {
  return options.unit_offset == Switch::kOn ? Initializer::kZeros : Initializer::kOnes;
}
[[nodiscard]] constexpr ops::WeightOffset weight_offset(const NormOptions& options) {
  return options.unit_offset == Switch::kOn ? ops::WeightOffset::kOne : ops::WeightOffset::kZero;
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
  NormPart(NormKind kind, std::int64_t width, const NormOptions& options, std::size_t first = 0)
      : kind_(kind), width_(width), options_(options), first_(first) {}

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
  [[nodiscard]] ops::RowNorm norm() const {
    return kind_ == NormKind::kLayerNorm
               ? ops::RowNorm{.center = ops::Center::kMean}
               : ops::RowNorm{.center = ops::Center::kZero, .offset = weight_offset(options_)};
  }

  NormKind kind_;
  std::int64_t width_;
  NormOptions options_;
  std::size_t first_;
};

/// The option epsilon=. Throws: Error(kUsage) where it is no number above 0.
[[nodiscard]] double take_epsilon(LayerLine& line);

/// The option unit_offset=, which is for RMS norms. Throws: Error(kUsage) where `has_rms_norm` is
/// false and it is on.
[[nodiscard]] Switch take_unit_offset(LayerLine& line, bool has_rms_norm);

}  // namespace strata::nn
