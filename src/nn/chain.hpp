#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "strata/nn/layer.hpp"

namespace strata::nn {

/// Layers one after the other inside a layer. What each of them needs is listed in order, as part
/// of what the outer layer asks its stage for.
class Chain {
 public:
  /// Pre: what a layer gives, the next one takes; none is a view.
  explicit Chain(std::vector<std::unique_ptr<Layer>> layers);

  [[nodiscard]] bool empty() const { return layers_.empty(); }
  [[nodiscard]] std::size_t size() const { return layers_.size(); }
  [[nodiscard]] std::size_t parameter_count() const { return parameter_count_; }

  [[nodiscard]] std::vector<ParameterSpec> parameters() const;
  /// For every layer its output, then what it saves.
  [[nodiscard]] std::vector<SavedSpec> saved(const PassShape& pass) const;
  /// For every layer the gradient of its input, but for the first, then what it makes for
  /// backward_weight.
  [[nodiscard]] std::vector<TensorSpec> gradients(const PassShape& pass) const;
  [[nodiscard]] std::vector<TensorSpec> workspace(const PassShape& pass) const;
  [[nodiscard]] LayerCost cost() const;
  [[nodiscard]] LayerTraffic traffic(const PassShape& pass) const;

  /// How many tensors of an outer layer's pass belong to a chain.
  struct Sizes {
    std::size_t saved = 0;
    std::size_t gradients = 0;
    std::size_t workspace = 0;
  };
  [[nodiscard]] Sizes sizes(const LayerPass& outer) const;

  /// The part of an outer layer's pass that belongs to a chain.
  struct Pass {
    const LayerPass& outer;
    std::span<const TensorView> saved;
    std::span<const TensorView> gradients;
    std::span<const TensorView> workspace;
    std::span<const ParameterViews> weights;
  };

  /// Gives the last layer's output. Pre: not empty().
  [[nodiscard]] TensorView forward(const Pass& pass) const;
  /// May change output_gradient in place; backward_weight wants it as it is then.
  void backward_input(const Pass& pass, const TensorView& output_gradient,
                      const TensorView& input_gradient) const;
  void backward_weight(const Pass& pass, const TensorView& output_gradient,
                       std::span<const ParameterViews> weight_gradients,
                       ops::Accumulate accumulate) const;

 private:
  /// One layer's part of a pass.
  struct Step {
    LayerPass pass;
    TensorView input_gradient;
    std::size_t first_parameter = 0;
    std::size_t parameters = 0;
  };
  [[nodiscard]] std::vector<Step> steps_of(const Pass& pass) const;

  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<std::size_t> parameter_counts_;
  std::size_t parameter_count_ = 0;
};

}  // namespace strata::nn
