#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strata/nn/layer.hpp"

#include "layer_line.hpp"

namespace strata::nn {

enum class NormKind { kNone, kLayerNorm, kRmsNorm };

/// Whether an affine map has an offset.
enum class Bias { kNo, kYes };

/// A normalisation of the last dimension, alone or at the beginning of a sublayer.
class NormPart {
 public:
  NormPart(NormKind kind, std::int64_t width, double epsilon, Bias bias)
      : kind_(kind), width_(width), epsilon_(epsilon), bias_(bias) {}

  [[nodiscard]] NormKind kind() const { return kind_; }
  /// weight, and for layer norms with one bias; named prefix + ".weight" and so on.
  [[nodiscard]] std::vector<ParameterSpec> parameters(const std::string& prefix) const;
  /// Mean and reciprocal deviation of every row.
  [[nodiscard]] std::vector<TensorSpec> statistics(std::int64_t rows, DType dtype) const;
  /// Memory for backward_weight.
  [[nodiscard]] std::vector<TensorSpec> workspace(const PassShape& pass) const;
  /// What backward_weight sends.
  [[nodiscard]] LayerTraffic traffic(const PassShape& pass, Placement placement) const;

  /// Shapes: x, y rows x width. `weights` begins with this part's parameters.
  void forward(ops::Context& context, std::span<const ParameterViews> weights,
               const ConstTensorView& x, const TensorView& y,
               std::span<const TensorView> statistics) const;
  /// dx = addend + the gradient; an empty addend is none.
  void backward_input(ops::Context& context, std::span<const ParameterViews> weights,
                      const ConstTensorView& x, std::span<const TensorView> statistics,
                      const ConstTensorView& dy, const ConstTensorView& addend,
                      const TensorView& dx) const;
  /// The gradient of each shard's share of the rows, added over the shards. With kTokens x and dy
  /// hold the own shards' rows. Communication: with kTokens one gather over the tensor group.
  void backward_weight(const LayerPass& pass, Placement placement, const ConstTensorView& x,
                       std::span<const TensorView> statistics, const ConstTensorView& dy,
                       std::span<const TensorView> workspace,
                       std::span<const ParameterViews> gradients, ops::Accumulate accumulate) const;

 private:
  [[nodiscard]] std::int64_t parameter_count() const;
  void weight_gradients(ops::Context& context, const ConstTensorView& x,
                        std::span<const TensorView> statistics, const ConstTensorView& dy,
                        const TensorView& weight, const TensorView& bias,
                        ops::Accumulate accumulate) const;

  NormKind kind_;
  std::int64_t width_;
  double epsilon_;
  Bias bias_;
};

/// The option epsilon=. Throws: Error(kUsage) where it is no number above 0.
[[nodiscard]] double take_epsilon(LayerLine& line);

}  // namespace strata::nn

template <>
struct strata::EnumNames<strata::nn::NormKind> {
  static constexpr std::array<std::pair<nn::NormKind, std::string_view>, 3> kTable{
      {{nn::NormKind::kNone, "none"},
       {nn::NormKind::kLayerNorm, "layer_norm"},
       {nn::NormKind::kRmsNorm, "rms_norm"}}};
};

template <>
struct strata::EnumNames<strata::nn::Bias> {
  static constexpr std::array<std::pair<nn::Bias, std::string_view>, 2> kTable{
      {{nn::Bias::kNo, "off"}, {nn::Bias::kYes, "on"}}};
};
