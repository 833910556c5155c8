#include "strata/nn/layer.hpp"

namespace strata::nn {

std::vector<SavedSpec> Layer::saved(std::int64_t /*microbatch*/, DType /*dtype*/) const {
  return {};
}

LayerCost Layer::cost() const {
  // An elementwise layer: reads its input and writes its output, forward and backward.
  const auto elements = static_cast<double>(input_shape_.count() + output_shape_.count());
  return {.forward_flops = 0.0, .backward_flops = 0.0, .elements_moved = 2.0 * elements};
}

void Layer::forward(const LayerPass& /*pass*/) const {
  require(is_view(), "layer {} has no forward pass", name_);
}

void Layer::backward_input(const LayerPass& /*pass*/, const TensorView& /*output_gradient*/,
                           const TensorView& /*input_gradient*/) const {
  require(is_view(), "layer {} has no backward pass", name_);
}

void Layer::backward_weight(const LayerPass& /*pass*/, const TensorView& /*output_gradient*/,
                            std::span<const TensorView> weight_gradients,
                            ops::Accumulate /*accumulate*/) const {
  require(weight_gradients.empty(), "layer {} has no weight gradient", name_);
}

}  // namespace strata::nn
