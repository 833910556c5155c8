#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strata/core/switch.hpp"
#include "strata/nn/adapters.hpp"
#include "strata/nn/layer.hpp"

#include "layers/shard_parts.hpp"

namespace strata::nn {

/// What shards divide of a projection.
enum class ProjectionSplit {
  kNone,
  kOutputs,  ///< each shard computes its share of the outputs
  kInputs    ///< each shard computes a contribution to all outputs, without the bias
};

constexpr auto enum_names(ProjectionSplit) {
  return names_in_order("none", "column", "row");
}

struct ProjectionOptions {
  std::string name = {};  ///< within its layer, as in "qkv"; empty: the layer has no other
  std::int64_t inputs = 1;
  std::int64_t outputs = 1;
  ProjectionSplit split = ProjectionSplit::kOutputs;
  /// Consecutive outputs, or inputs, that one shard holds whole.
  std::int64_t unit = 1;
  Switch bias = Switch::kOn;
  Initializer initializer = Initializer::kNormal;
  double deviation = 0.02;   ///< of the initial weights, for kNormal
  Shape weight = {};         ///< empty: outputs x inputs
  bool padded_rows = false;  ///< y may have longer rows (ops::MatmulOptions)
};

/// y = x W^T + b, a product with a weight that is split by shard; with an adapter plus alpha / rank
/// (x A^T) B^T. The adapter's matrix on the split side is split like W, the other is shared by all
/// shards. Shapes: x rows x inputs, W outputs x inputs, b outputs, A rank x inputs, B outputs x
/// rank, y rows x outputs; x or y is the shard's share.
class Projection {
 public:
  /// `first`: the index of W among the layer's parameters.
  Projection(ProjectionOptions options, std::size_t first)
      : options_(std::move(options)), weight_(first) {}
  /// Adds an adapter. `first`: the index of A among the layer's parameters, which B follows.
  /// `first_element`: where the gradient of its shared matrix begins in a block of ShardParts.
  void adapt(const AdapterOptions& adapter, std::size_t first, std::int64_t first_element);

  [[nodiscard]] const std::string& name() const { return options_.name; }
  [[nodiscard]] std::int64_t inputs() const { return options_.inputs; }
  [[nodiscard]] std::int64_t outputs() const { return options_.outputs; }
  [[nodiscard]] std::int64_t unit() const { return options_.unit; }
  [[nodiscard]] bool has_bias() const { return options_.bias == Switch::kOn; }
  [[nodiscard]] bool is_adapted() const { return rank_ > 0; }
  /// The indices of the parameters whose rows are outputs, among the layer's: W, b, B.
  [[nodiscard]] std::vector<std::size_t> parameters_of_outputs() const {
    std::vector<std::size_t> parameters{weight_};
    if (has_bias()) {
      parameters.push_back(weight_ + 1);
    }
    if (is_adapted()) {
      parameters.push_back(a_ + 1);
    }
    return parameters;
  }
  /// Elements of the adapter's matrix that all shards share; 0 without an adapter.
  [[nodiscard]] std::int64_t shared_elements() const {
    return rank_ * (splits_outputs() ? inputs() : outputs());
  }

  /// W and b.
  [[nodiscard]] std::vector<ParameterSpec> parameters(const std::string& layer) const;
  /// A and B; none without an adapter.
  [[nodiscard]] std::vector<ParameterSpec> adapter_parameters(const std::string& layer) const;

  [[nodiscard]] const TensorView& weight(const LayerPass& pass, std::int64_t shard) const {
    return pass.weights[weight_][local(pass, shard)];
  }
  /// Empty without a bias.
  [[nodiscard]] TensorView bias(const LayerPass& pass, std::int64_t shard) const;

  /// alpha / rank x A^T in `low`, the input of the adapter's second product; empty without an
  /// adapter. Where shards divide the outputs it is the same for all. Shapes: low rows x rank.
  [[nodiscard]] ConstTensorView lower(const LayerPass& pass, std::int64_t shard,
                                      const ConstTensorView& x, const TensorView& low) const;
  /// alpha / rank dy B in `low`; the same for all shards where they divide the inputs.
  [[nodiscard]] ConstTensorView lower_gradient(const LayerPass& pass, std::int64_t shard,
                                               const ConstTensorView& dy,
                                               const TensorView& low) const;

  /// y, in which the options take part; `lower` is of lower().
  void forward(const LayerPass& pass, std::int64_t shard, const ConstTensorView& x,
               const ConstTensorView& lower, const TensorView& y, ops::MatmulOptions options) const;
  /// dx = (or +=) dy W, `lower` is of lower_gradient().
  void input_gradient(const LayerPass& pass, std::int64_t shard, const ConstTensorView& dy,
                      const ConstTensorView& lower, const TensorView& dx,
                      ops::MatmulOptions options) const;
  /// The gradient of W, where it is wanted.
  void weight_gradient(const LayerPass& pass, std::int64_t shard, const ConstTensorView& x,
                       const ConstTensorView& dy, ops::Accumulate accumulate) const;
  /// Where it goes; empty where it is not wanted.
  [[nodiscard]] const TensorView& weight_gradient_at(const LayerPass& pass,
                                                     std::int64_t shard) const {
    return pass.weight_gradients[weight_][local(pass, shard)];
  }
  /// Where the gradient of the bias goes; one of all shards where they divide the inputs.
  [[nodiscard]] const TensorView& bias_gradient(const LayerPass& pass, std::int64_t shard) const {
    return pass.weight_gradients[weight_ + 1][splits_outputs() ? local(pass, shard) : 0];
  }

  /// The operands of a shard.
  struct Operands {
    std::function<ConstTensorView(std::int64_t shard)> x;
    std::function<ConstTensorView(std::int64_t shard)> dy;
  };
  /// The gradients of A and B; with more than one shard the shared one goes to each own shard's
  /// block of `elements`, to be summed as `shared` says. Pre: is_adapted().
  void adapter_gradients(const LayerPass& pass, const Operands& operands, const TensorView& low,
                         const TensorView& blocks, std::int64_t elements,
                         std::vector<SharedGradient>& shared) const;

 private:
  [[nodiscard]] std::string full_name(const std::string& layer) const {
    return name().empty() ? layer : parameter_name(layer, name());
  }
  [[nodiscard]] bool splits_outputs() const { return options_.split == ProjectionSplit::kOutputs; }
  [[nodiscard]] static std::size_t local(const LayerPass& pass, std::int64_t shard) {
    return static_cast<std::size_t>(shard - pass.shards.own().begin);
  }
  [[nodiscard]] const TensorView& a(const LayerPass& pass, std::int64_t shard) const {
    return pass.weights[a_][splits_outputs() ? 0 : local(pass, shard)];
  }
  [[nodiscard]] const TensorView& b(const LayerPass& pass, std::int64_t shard) const {
    return pass.weights[a_ + 1][splits_outputs() ? local(pass, shard) : 0];
  }
  [[nodiscard]] ConstTensorView scaled_product(const LayerPass& pass, const ConstTensorView& x,
                                               const TensorView& matrix, ops::Transpose transpose,
                                               const TensorView& low) const;

  ProjectionOptions options_;
  std::size_t weight_;
  std::int64_t rank_ = 0;
  double factor_ = 1.0;  ///< alpha / rank
  std::size_t a_ = 0;
  std::int64_t first_element_ = 0;
};

}  // namespace strata::nn
