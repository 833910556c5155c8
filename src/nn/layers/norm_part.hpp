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
  NormPart(NormKind kind, std::int64_t width, double epsilon, Switch bias)
      : kind_(kind), width_(width), epsilon_(epsilon), bias_(bias) {}

  [[nodiscard]] NormKind kind() const { return kind_; }
  /// weight, and for layer norms with one bias; named prefix + ".weight" and so on.
  [[nodiscard]] std::vector<ParameterSpec> parameters(const std::string& prefix) const;
  [[nodiscard]] NormStatistics<TensorSpec> statistics(std::int64_t rows, DType dtype) const;
  /// Memory for backward_weight.
  [[nodiscard]] ShardParts<TensorSpec> workspace(const PassShape& pass) const;

  /// Shapes: x, y rows x width. `weights` begins with this part's parameters.
  void forward(ops::Context& context, std::span<const ParameterViews> weights,
               const ConstTensorView& x, const TensorView& y,
               const NormStatistics<TensorView>& statistics) const;
  /// dx = addend + the gradient; the addend may be empty.
  void backward_input(ops::Context& context, std::span<const ParameterViews> weights,
                      const ConstTensorView& x, const NormStatistics<TensorView>& statistics,
                      const ConstTensorView& dy, const ConstTensorView& addend,
                      const TensorView& dx) const;
  /// Sums the partial gradients of each shard's share of the rows. With kTokens x and dy hold the
  /// own shards' rows. Communication: with kTokens one all-gather over the tensor group.
  void backward_weight(const LayerPass& pass, Placement placement, const ConstTensorView& x,
                       const NormStatistics<TensorView>& statistics, const ConstTensorView& dy,
                       const ShardParts<TensorView>& workspace,
                       std::span<const ParameterViews> gradients, ops::Accumulate accumulate) const;

  /// Both, where no shards share the rows. Pre: pass.shards.shards() == 1.
  void backward(const LayerPass& pass, const ConstTensorView& x,
                const NormStatistics<TensorView>& statistics, const ConstTensorView& dy,
                const ConstTensorView& addend, const TensorView& dx,
                std::span<const ParameterViews> gradients, ops::Accumulate accumulate) const;

 private:
  [[nodiscard]] std::int64_t parameter_count() const;
  [[nodiscard]] ops::Center center() const {
    return kind_ == NormKind::kLayerNorm ? ops::Center::kMean : ops::Center::kZero;
  }

  NormKind kind_;
  std::int64_t width_;
  double epsilon_;
  Switch bias_;
};

/// The option epsilon=. Throws: Error(kUsage) where it is no number above 0.
[[nodiscard]] double take_epsilon(LayerLine& line);

}  // namespace strata::nn
