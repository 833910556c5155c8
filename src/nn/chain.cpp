#include "chain.hpp"

namespace strata::nn {
namespace {

template <typename T>
void append(std::vector<T>& all, std::vector<T> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// What a layer lists depends on this alone, but for sizes.
PassShape listing_of(const LayerPass& pass) {
  return {.dtype = pass.output.dtype(),
          .shards = {.count = pass.shards.shards(), .own = pass.shards.own()},
          .recompute = pass.recompute};
}

/// Takes consecutive parts of a list.
template <typename T>
class Taker {
 public:
  explicit Taker(std::span<const T> all) : left_(all) {}
  std::span<const T> take(std::size_t count) {
    const std::span<const T> part = left_.first(count);
    left_ = left_.subspan(count);
    return part;
  }

 private:
  std::span<const T> left_;
};

}  // namespace

Chain::Chain(std::vector<std::unique_ptr<Layer>> layers) : layers_(std::move(layers)) {
  for (const auto& layer : layers_) {
    parameter_counts_.push_back(layer->parameters().size());
    parameter_count_ += parameter_counts_.back();
  }
}

std::vector<ParameterSpec> Chain::parameters() const {
  std::vector<ParameterSpec> specs;
  for (const auto& layer : layers_) {
    append(specs, layer->parameters());
  }
  return specs;
}

std::vector<SavedSpec> Chain::saved(const PassShape& pass) const {
  std::vector<SavedSpec> specs;
  for (const auto& layer : layers_) {
    specs.push_back({{local_shape(layer->output(), pass), pass.dtype}});
    for (const SavedSpec& saved : layer->saved(pass)) {
      specs.push_back({saved.tensor});
    }
  }
  return specs;
}

std::vector<TensorSpec> Chain::gradients(const PassShape& pass) const {
  std::vector<TensorSpec> specs;
  for (const auto& layer : layers_) {
    if (layer != layers_.front()) {
      specs.push_back({local_shape(layer->input(), pass), pass.dtype});
    }
    append(specs, layer->gradients(pass));
  }
  return specs;
}

std::vector<TensorSpec> Chain::workspace(const PassShape& pass) const {
  std::vector<TensorSpec> specs;
  for (const auto& layer : layers_) {
    append(specs, layer->workspace(pass));
  }
  return specs;
}

LayerCost Chain::cost() const {
  LayerCost sum;
  for (const auto& layer : layers_) {
    const LayerCost cost = layer->cost();
    sum.forward_flops += cost.forward_flops;
    sum.backward_flops += cost.backward_flops;
    sum.elements_moved += cost.elements_moved;
  }
  return sum;
}

LayerTraffic Chain::traffic(const PassShape& pass) const {
  LayerTraffic traffic;
  for (const auto& layer : layers_) {
    traffic += layer->traffic(pass);
  }
  return traffic;
}

Chain::Sizes Chain::sizes(const LayerPass& outer) const {
  const PassShape listing = listing_of(outer);
  return {saved(listing).size(), gradients(listing).size(), workspace(listing).size()};
}

std::vector<Chain::Step> Chain::steps_of(const Pass& pass) const {
  const PassShape listing = listing_of(pass.outer);
  Taker saved(pass.saved);
  Taker gradients(pass.gradients);
  Taker workspace(pass.workspace);
  Taker weights(pass.weights);
  ConstTensorView input = pass.outer.input;
  std::size_t first_parameter = 0;
  std::vector<Step> steps;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = *layers_[i];
    Step step{
        .pass = pass.outer, .first_parameter = first_parameter, .parameters = parameter_counts_[i]};
    first_parameter += step.parameters;
    step.pass.input = input;
    step.pass.output = saved.take(1).front();
    step.pass.saved = saved.take(layer.saved(listing).size());
    // Evaluation keeps no gradients.
    if (!pass.gradients.empty()) {
      step.input_gradient = i == 0 ? TensorView() : gradients.take(1).front();
      step.pass.gradients = gradients.take(layer.gradients(listing).size());
    }
    step.pass.workspace = workspace.take(layer.workspace(listing).size());
    step.pass.weights = weights.take(step.parameters);
    input = step.pass.output;
    steps.push_back(step);
  }
  return steps;
}

TensorView Chain::forward(const Pass& pass) const {
  const std::vector<Step> steps = steps_of(pass);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i]->forward(steps[i].pass);
  }
  return steps.back().pass.output;
}

void Chain::backward_input(const Pass& pass, const TensorView& output_gradient,
                           const TensorView& input_gradient) const {
  const std::vector<Step> steps = steps_of(pass);
  TensorView gradient = output_gradient;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const TensorView into = i == 0 ? input_gradient : steps[i].input_gradient;
    layers_[i]->backward_input(steps[i].pass, gradient, into);
    gradient = into;
  }
}

void Chain::backward_weight(const Pass& pass, const TensorView& output_gradient,
                            std::span<const ParameterViews> weight_gradients,
                            ops::Accumulate accumulate) const {
  const std::vector<Step> steps = steps_of(pass);
  TensorView gradient = output_gradient;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Step& step = steps[i];
    if (step.parameters > 0) {
      layers_[i]->backward_weight(step.pass, gradient,
                                  weight_gradients.subspan(step.first_parameter, step.parameters),
                                  accumulate);
    }
    gradient = step.input_gradient;
  }
}

}  // namespace strata::nn
