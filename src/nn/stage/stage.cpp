#include "strata/nn/stage.hpp"

#include <algorithm>

#include "stage/stage_memory.hpp"

namespace strata::nn {

Stage::Stage(ops::Context& context, comm::ShardGroup& shards, const Model& model,
             const StageSpec& spec, const TensorView& weights, comm::PartGroup* lanes)
    : context_(context),
      shards_(shards),
      lanes_(lanes),
      model_(model),
      spec_(spec),
      layout_(layout_of(model.parameters(), spec.layers, spec.pass.shards)),
      input_tensors_(model.crossing(spec.layers.begin)),
      output_tensors_(model.crossing(spec.layers.end)),
      recorder_(context) {
  require(weights.count() == layout_.weight_elements && weights.dtype() == spec.pass.dtype,
          "{} weights of {} where {} of {} are laid out", weights.count(), name_of(weights.dtype()),
          layout_.weight_elements, name_of(spec.pass.dtype));
  require(shards.shards() == spec.pass.shards.count && shards.own() == spec.pass.shards.own &&
              model.shards() == spec.pass.shards.count,
          "a stage for {} shards in a group of {} with a model of {}", spec.pass.shards.count,
          shards.shards(), model.shards());
  require(!model.joins_lanes() || spec.slots.gradients == 0 ||
              (lanes != nullptr && lanes->own().count() == spec.pass.together),
          "a stage for {} lanes together that knows of no others", spec.pass.together);
  for (const MemoryItem& item : memory(model, spec)) {
    memory_.emplace_back(context.device(), item.bytes);
  }
  // In the order of memory().
  Carver activations(&memory_[0]);
  Carver remade(&memory_[1]);
  Carver inputs(&memory_[2]);
  Carver gradients(&memory_[3]);
  Carver shared(&memory_[4]);
  Carver workspace(&memory_[5]);
  Carver losses(&memory_[6]);
  // What passes share, those that run together have each for itself.
  const auto own_part = [&](Carver& carver, const device::Buffer& memory, std::int64_t slot) {
    carver.set_base(slot % spec.pass.together * (memory.bytes() / spec.pass.together));
  };
  for (std::int64_t s = 0; s < spec.slots.activations * spec.pass.together; ++s) {
    own_part(remade, memory_[1], s);
    activation_slots_.push_back(carve_activations(model, spec, activations, remade));
  }
  for (std::int64_t s = 0; s < spec.slots.inputs * spec.pass.together; ++s) {
    input_slots_.push_back(carve_inputs(model, spec, inputs));
  }
  for (std::int64_t s = 0; s < spec.slots.gradients * spec.pass.together; ++s) {
    own_part(shared, memory_[4], s);
    gradient_slots_.push_back(carve_gradients(model, spec, gradients, shared));
  }
  workspace_ = carve_workspace(model, spec, workspace);
  loss_workspace_ = carve_loss(model, spec, workspace);
  losses_ = carve_losses(model, spec, losses);
  losses_on_host_ = device::HostCopy(losses_);
  place_weights(weights);
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    counts_microbatches_ = counts_microbatches_ || model.layer(i).counts_microbatches();
  }
}

void Stage::place_weights(const TensorView& weights) {
  weights_.resize(static_cast<std::size_t>(spec_.layers.count()));
  const auto same_parameter = [](const PlacedParameter& a, const PlacedParameter& b) {
    return a.spec.name == b.spec.name && a.shard == b.shard;
  };
  std::vector<std::vector<std::string>> placed_names(weights_.size());
  for (const PlacedParameter& placed : layout_.parameters) {
    const PlacedParameter* source = &placed;
    if (placed.offset >= layout_.weight_elements) {
      // Borrowed from this very stage.
      source = &*std::find_if(
          layout_.parameters.begin(), layout_.parameters.end(),
          [&](const PlacedParameter& other) { return same_parameter(placed, other); });
    }
    const std::size_t layer = local(placed.spec.layer);
    if (placed_names[layer].empty() || placed_names[layer].back() != placed.spec.name) {
      placed_names[layer].push_back(placed.spec.name);
      weights_[layer].emplace_back();
    }
    weights_[layer].back().push_back(
        weights.flat_slice(source->offset, placed.shape.count()).reshaped(placed.shape));
  }
}

const Stage::ActivationSlot& Stage::slot_of(std::int64_t turn) const {
  return activation_slots_[static_cast<std::size_t>(turn) % activation_slots_.size()];
}

const Stage::GradientSlot& Stage::gradients_of(std::int64_t turn) const {
  return gradient_slots_[static_cast<std::size_t>(turn) % gradient_slots_.size()];
}

const std::vector<TensorView>& Stage::inputs_of(std::int64_t turn) const {
  return input_slots_[static_cast<std::size_t>(turn) % input_slots_.size()];
}

std::vector<ConstTensorView> Stage::outputs_of(const Microbatch& microbatch) const {
  std::vector<ConstTensorView> outputs;
  for (const std::int64_t tensor : output_tensors_) {
    outputs.push_back(tensor_of(tensor, microbatch));
  }
  if (is_last()) {
    outputs.front() = outputs.front().reshaped(local_shape(model_.output(), spec_.pass));
  }
  return outputs;
}

TensorView Stage::output_gradient(std::int64_t layer, std::int64_t turn) const {
  if (layer + 1 == spec_.layers.end && gradient_replaces_output(model_, spec_)) {
    return slot_of(turn).outputs.back();
  }
  return gradients_of(turn).layers[local(layer)].output;
}

std::vector<TensorView> Stage::output_gradients_of(std::int64_t turn) const {
  return gradient_replaces_output(model_, spec_) ? std::vector{slot_of(turn).outputs.back()}
                                                 : gradients_of(turn).received;
}

const std::vector<TensorView>& Stage::input_gradients_of(std::int64_t turn) const {
  return gradients_of(turn).sent;
}

ConstTensorView Stage::tensor_of(std::int64_t tensor, const Microbatch& microbatch) const {
  if (tensor >= spec_.layers.begin) {
    return slot_of(microbatch.turn).outputs[local(tensor)];
  }
  if (is_first()) {
    return microbatch.input;
  }
  const auto at = std::find(input_tensors_.begin(), input_tensors_.end(), tensor);
  return inputs_of(microbatch.turn)[static_cast<std::size_t>(at - input_tensors_.begin())];
}

LayerPass Stage::pass_of(std::int64_t layer, const Microbatch& microbatch, Mode mode) {
  const ActivationSlot& slot = slot_of(microbatch.turn);
  const Port& port = model_.layer(layer).input();
  const LayerSources& sources = model_.sources(layer);
  const auto read = [&](std::int64_t tensor) {
    const ConstTensorView view = tensor_of(tensor, microbatch);
    return model_.port_of(tensor).shape == port.shape
               ? view
               : view.reshaped(local_shape(port, spec_.pass));
  };
  return {.context = context_,
          .shards = shards_,
          .mode = mode,
          .recompute = spec_.pass.recompute,
          .lanes = lanes_,
          .first_sample = microbatch.first_sample,
          .input = read(sources.input),
          .added = sources.added ? read(*sources.added) : ConstTensorView(),
          .output = slot.outputs[local(layer)],
          .saved = slot.saved[local(layer)],
          .gradients = gradient_slots_.empty()
                           ? std::span<const TensorView>()
                           : gradients_of(microbatch.turn).layers[local(layer)].inner,
          .workspace = workspace_[local(layer)],
          .weights = weights_[local(layer)]};
}

std::vector<LayerPass> Stage::passes_of(std::int64_t layer, std::span<const Microbatch> together,
                                        Mode mode) {
  std::vector<LayerPass> passes;
  for (const Microbatch& microbatch : together) {
    passes.push_back(pass_of(layer, microbatch, mode));
  }
  return passes;
}

}  // namespace strata::nn
