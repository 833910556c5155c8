#include "strata/nn/stage.hpp"

#include <algorithm>
#include <numeric>

namespace strata::nn {
namespace {

/// Deals out pieces of one arena, or only counts their bytes where it has no memory.
class Carver {
 public:
  explicit Carver(const device::Buffer* memory) : memory_(memory) {}

  TensorView take(const Shape& shape, DType dtype) {
    constexpr std::int64_t kAlignment = device::Buffer::kAlignmentBytes;
    const std::int64_t offset = bytes_;
    bytes_ += (shape.count() * size_bytes(dtype) + kAlignment - 1) / kAlignment * kAlignment;
    return memory_ == nullptr ? TensorView() : memory_->view(offset, shape, dtype);
  }

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  const device::Buffer* memory_;
  std::int64_t bytes_ = 0;
};

Shape batched(const Shape& sample, std::int64_t microbatch) {
  return sample.prepended(microbatch);
}

struct Plan {
  const Model& model;
  const grid::Range& layers;
  std::int64_t microbatch;
  DType dtype;

  [[nodiscard]] const Layer& layer(std::int64_t i) const { return model.layer(i); }
};

/// Outputs and saved tensors of one microbatch.
std::pair<std::vector<TensorView>, std::vector<std::vector<TensorView>>> carve_activations(
    const Plan& plan, Carver& carver) {
  std::vector<TensorView> outputs;
  std::vector<std::vector<TensorView>> saved;
  for (std::int64_t i = plan.layers.begin; i < plan.layers.end; ++i) {
    const Layer& layer = plan.layer(i);
    // A view's output is its input; the pass resolves it.
    outputs.push_back(
        layer.is_view() ? TensorView()
                        : carver.take(batched(layer.output_shape(), plan.microbatch), plan.dtype));
    saved.emplace_back();
    for (const SavedSpec& spec : layer.saved(plan.microbatch, plan.dtype)) {
      saved.back().push_back(carver.take(spec.shape, spec.dtype));
    }
  }
  return {std::move(outputs), std::move(saved)};
}

/// Gradients of the stage's input and of every layer's output. The first stage's input has none,
/// and neither do the views that lead it, but what the next stage sends always has a place.
std::vector<TensorView> carve_gradients(const Plan& plan, Carver& carver) {
  std::vector<TensorView> gradients;
  bool wanted = plan.layers.begin != 0;
  const Shape& input = plan.layer(plan.layers.begin).input_shape();
  gradients.push_back(wanted ? carver.take(batched(input, plan.microbatch), plan.dtype)
                             : TensorView());
  for (std::int64_t i = plan.layers.begin; i < plan.layers.end; ++i) {
    const Layer& layer = plan.layer(i);
    const Shape shape = batched(layer.output_shape(), plan.microbatch);
    const TensorView previous = gradients.back();
    if (!layer.is_view() || (!wanted && i + 1 == plan.layers.end)) {
      gradients.push_back(carver.take(shape, plan.dtype));
      wanted = true;
    } else {
      gradients.push_back(previous.empty() ? TensorView() : previous.reshaped(shape));
    }
  }
  return gradients;
}

std::int64_t activation_bytes(const Plan& plan) {
  Carver counter(nullptr);
  carve_activations(plan, counter);
  return counter.bytes();
}

std::int64_t input_bytes(const Plan& plan) {
  Carver counter(nullptr);
  counter.take(batched(plan.layer(plan.layers.begin).input_shape(), plan.microbatch), plan.dtype);
  return counter.bytes();
}

std::int64_t gradient_bytes(const Plan& plan) {
  Carver counter(nullptr);
  carve_gradients(plan, counter);
  return counter.bytes();
}

}  // namespace

std::vector<MemoryItem> Stage::memory(const Model& model, const grid::Range& layers,
                                      std::int64_t microbatch, const StageSlots& slots,
                                      DType dtype) {
  const Plan plan{model, layers, microbatch, dtype};
  return {{"activations", slots.activations * activation_bytes(plan)},
          {"received activations", slots.inputs * input_bytes(plan)},
          {"activation gradients", slots.gradients * gradient_bytes(plan)}};
}

Stage::Stage(ops::Context& context, const Model& model, const grid::Range& layers,
             std::int64_t microbatch, const StageSlots& slots, const TensorView& weights)
    : context_(context),
      model_(model),
      layers_(layers),
      microbatch_(microbatch),
      slots_(slots),
      dtype_(weights.dtype()),
      layout_(layout_of(model.parameters(), layers)) {
  require(weights.count() == layout_.elements, "weights of {} elements where {} are laid out",
          weights.count(), layout_.elements);
  const Plan plan{model, layers_, microbatch, dtype_};
  const std::vector<MemoryItem> items = memory(model, layers, microbatch, slots, dtype_);
  activation_memory_ = device::Buffer(context.device(), items[0].bytes);
  input_memory_ = device::Buffer(context.device(), items[1].bytes);
  gradient_memory_ = device::Buffer(context.device(), items[2].bytes);

  Carver activations(&activation_memory_);
  for (std::int64_t s = 0; s < slots.activations; ++s) {
    auto [outputs, saved] = carve_activations(plan, activations);
    activation_slots_.push_back({std::move(outputs), std::move(saved)});
  }
  Carver inputs(&input_memory_);
  for (std::int64_t s = 0; s < slots.inputs; ++s) {
    input_slots_.push_back(
        inputs.take(batched(model.layer(layers.begin).input_shape(), microbatch), dtype_));
  }
  Carver gradients(&gradient_memory_);
  for (std::int64_t s = 0; s < slots.gradients; ++s) {
    gradient_slots_.push_back(carve_gradients(plan, gradients));
  }
  weights_.resize(static_cast<std::size_t>(layers.count()));
  for (const PlacedParameter& placed : layout_.parameters) {
    weights_[static_cast<std::size_t>(placed.spec.layer - layers.begin)].push_back(
        weights.flat_slice(placed.offset, placed.spec.shape.count()).reshaped(placed.spec.shape));
  }
}

const Stage::Slot& Stage::slot_of(std::int64_t m) const {
  return activation_slots_[static_cast<std::size_t>(m % slots_.activations)];
}

const std::vector<TensorView>& Stage::gradients_of(std::int64_t m) const {
  return gradient_slots_[static_cast<std::size_t>(m % slots_.gradients)];
}

TensorView Stage::input_of(std::int64_t m) const {
  return input_slots_[static_cast<std::size_t>(m % slots_.inputs)];
}

ConstTensorView Stage::output_of(std::int64_t m, const ConstTensorView& input) const {
  return layer_input(layers_.end, m, input);
}

TensorView Stage::output_gradient_of(std::int64_t m) const {
  return gradients_of(m).back();
}

ConstTensorView Stage::input_gradient_of(std::int64_t m) const {
  return gradients_of(m).front();
}

ConstTensorView Stage::layer_input(std::int64_t layer, std::int64_t m,
                                   const ConstTensorView& input) const {
  if (layer == layers_.begin) {
    return input;
  }
  const TensorView& output =
      slot_of(m).outputs[static_cast<std::size_t>(layer - 1 - layers_.begin)];
  if (!output.empty()) {
    return output;
  }
  return layer_input(layer - 1, m, input)
      .reshaped(batched(model_.layer(layer - 1).output_shape(), microbatch_));
}

LayerPass Stage::pass_of(std::int64_t layer, std::int64_t m, const ConstTensorView& input,
                         std::int64_t first_row, Mode mode) {
  const auto local = static_cast<std::size_t>(layer - layers_.begin);
  const Slot& slot = slot_of(m);
  return {.context = context_,
          .mode = mode,
          .first_row = first_row,
          .input = layer_input(layer, m, input),
          .output = slot.outputs[local],
          .saved = slot.saved[local],
          .weights = weights_[local]};
}

void Stage::forward(std::int64_t m, const ConstTensorView& input, std::int64_t first_row,
                    Mode mode) {
  for (std::int64_t i = layers_.begin; i < layers_.end; ++i) {
    if (!model_.layer(i).is_view()) {
      model_.layer(i).forward(pass_of(i, m, input, first_row, mode));
    }
  }
}

ops::LossSums Stage::loss(std::int64_t m, const ConstTensorView& input,
                          const ConstTensorView& targets, std::int64_t valid_rows,
                          double gradient_scale, Mode mode) {
  require(is_last(), "the loss of a stage that is not the last");
  const ConstTensorView output = output_of(m, input);
  const TensorView gradient = mode == Mode::kTraining ? output_gradient_of(m) : TensorView();
  if (model_.loss() == LossKind::kCrossEntropy) {
    return ops::cross_entropy(context_, output, targets, valid_rows, gradient_scale, gradient);
  }
  return ops::mean_squared_error(context_, output, targets.reshaped(output.shape()), valid_rows,
                                 gradient_scale, gradient);
}

void Stage::backward_input(std::int64_t m, const ConstTensorView& input, std::int64_t first_row) {
  const std::vector<TensorView>& gradients = gradients_of(m);
  for (std::int64_t i = layers_.end; i-- > layers_.begin;) {
    const auto local = static_cast<std::size_t>(i - layers_.begin);
    if (!model_.layer(i).is_view()) {
      model_.layer(i).backward_input(pass_of(i, m, input, first_row, Mode::kTraining),
                                     gradients[local + 1], gradients[local]);
    }
  }
}

void Stage::backward_weight(std::int64_t m, const ConstTensorView& input, std::int64_t first_row,
                            GradientSink& sink) {
  const std::vector<TensorView>& gradients = gradients_of(m);
  const GradientSink::Target target = sink.target(m);
  auto placed = layout_.parameters.rbegin();
  for (std::int64_t i = layers_.end; i-- > layers_.begin;) {
    std::vector<TensorView> weight_gradients;
    for (; placed != layout_.parameters.rend() && placed->spec.layer == i; ++placed) {
      weight_gradients.insert(
          weight_gradients.begin(),
          target.gradients.flat_slice(placed->offset, placed->spec.shape.count())
              .reshaped(placed->spec.shape));
    }
    if (!weight_gradients.empty()) {
      const auto local = static_cast<std::size_t>(i - layers_.begin);
      model_.layer(i).backward_weight(pass_of(i, m, input, first_row, Mode::kTraining),
                                      gradients[local + 1], weight_gradients, target.accumulate);
    }
    sink.layer_done(m, i);
  }
}

}  // namespace strata::nn
