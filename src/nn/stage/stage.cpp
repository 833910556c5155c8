#include "strata/nn/stage.hpp"

#include <algorithm>

#include "strata/core/error.hpp"

#include "stage/stage_memory.hpp"

namespace strata::nn {

Stage::Stage(ops::Context& context, comm::ProgressEngine& engine, comm::ShardGroup& shards,
             const Model& model, const StageSpec& spec, const TensorView& weights,
             comm::PartitionedGroup* lanes)
    : context_(context),
      engine_(engine),
      shards_(shards),
      lanes_(lanes),
      model_(model),
      spec_(spec),
      layout_(layout_of(model.parameters(), spec.layers, spec.pass.shards)),
      input_tensors_(model.boundary_tensors(spec.layers.begin)),
      output_tensors_(model.boundary_tensors(spec.layers.end)),
      graph_cache_(context) {
  require(weights.count() == layout_.weight_elements && weights.dtype() == spec.pass.dtype,
          "{} weights of {} where {} of {} are laid out", weights.count(), name_of(weights.dtype()),
          layout_.weight_elements, name_of(spec.pass.dtype));
  require(shards.shards() == spec.pass.shards.count && shards.own() == spec.pass.shards.own &&
              model.shards() == spec.pass.shards.count,
          "a stage for {} shards in a group of {} with a model of {}", spec.pass.shards.count,
          shards.shards(), model.shards());
  require(!model.joins_lanes() || spec.slots.gradients == 0 ||
              (lanes != nullptr && lanes->own().count() == spec.pass.concurrent_lanes),
          "a stage for {} lanes together that knows of no others", spec.pass.concurrent_lanes);
  for (const MemoryItem& item : memory(model, spec)) {
    memory_.emplace_back(context.device(), item.bytes);
  }
  // In the order of memory().
  ArenaAllocator activations(&memory_[0]);
  ArenaAllocator recomputed(&memory_[1]);
  ArenaAllocator inputs(&memory_[2]);
  ArenaAllocator gradients(&memory_[3]);
  ArenaAllocator shared(&memory_[4]);
  ArenaAllocator workspace(&memory_[5]);
  ArenaAllocator losses(&memory_[6]);
  // What passes share, those that run together have each for itself.
  const auto own_part = [&](ArenaAllocator& allocator, const device::Buffer& memory,
                            std::int64_t slot) {
    allocator.set_base(slot % spec.pass.concurrent_lanes *
                       (memory.bytes() / spec.pass.concurrent_lanes));
  };
  for (std::int64_t s = 0; s < spec.slots.activations * spec.pass.concurrent_lanes; ++s) {
    own_part(recomputed, memory_[1], s);
    activation_slots_.push_back(allocate_activations(model, spec, activations, recomputed));
  }
  for (std::int64_t s = 0; s < spec.slots.inputs * spec.pass.concurrent_lanes; ++s) {
    input_slots_.push_back(allocate_inputs(model, spec, inputs));
  }
  for (std::int64_t s = 0; s < spec.slots.gradients * spec.pass.concurrent_lanes; ++s) {
    own_part(shared, memory_[4], s);
    gradient_slots_.push_back(allocate_gradients(model, spec, gradients, shared));
  }
  workspace_ = allocate_workspace(model, spec, workspace);
  loss_workspace_ = allocate_loss(model, spec, workspace);
  losses_ = allocate_losses(model, spec, losses);
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

const Stage::ActivationSlot& Stage::slot_of(std::int64_t execution_index) const {
  return activation_slots_[static_cast<std::size_t>(execution_index) % activation_slots_.size()];
}

const Stage::GradientSlot& Stage::gradients_of(std::int64_t execution_index) const {
  return gradient_slots_[static_cast<std::size_t>(execution_index) % gradient_slots_.size()];
}

const std::vector<TensorView>& Stage::inputs_of(std::int64_t execution_index) const {
  return input_slots_[static_cast<std::size_t>(execution_index) % input_slots_.size()];
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

TensorView Stage::output_gradient(std::int64_t layer, std::int64_t execution_index) const {
  if (layer + 1 == spec_.layers.end && gradient_overwrites_output(model_, spec_)) {
    return slot_of(execution_index).outputs.back();
  }
  return gradients_of(execution_index).layers[local(layer)].output;
}

std::vector<TensorView> Stage::output_gradients_of(std::int64_t execution_index) const {
  return gradient_overwrites_output(model_, spec_)
             ? std::vector{slot_of(execution_index).outputs.back()}
             : gradients_of(execution_index).received;
}

const std::vector<TensorView>& Stage::input_gradients_of(std::int64_t execution_index) const {
  return gradients_of(execution_index).sent;
}

ConstTensorView Stage::tensor_of(std::int64_t tensor, const Microbatch& microbatch) const {
  if (tensor >= spec_.layers.begin) {
    return slot_of(microbatch.execution_index).outputs[local(tensor)];
  }
  if (is_first()) {
    return microbatch.input;
  }
  const auto at = std::find(input_tensors_.begin(), input_tensors_.end(), tensor);
  return inputs_of(
      microbatch.execution_index)[static_cast<std::size_t>(at - input_tensors_.begin())];
}

LayerPass Stage::pass_of(std::int64_t layer, const Microbatch& microbatch, Mode mode) {
  const ActivationSlot& slot = slot_of(microbatch.execution_index);
  const Port& port = model_.layer(layer).input();
  const LayerSources& sources = model_.sources(layer);
  const auto read = [&](std::int64_t tensor) {
    const ConstTensorView view = tensor_of(tensor, microbatch);
    return model_.port_of(tensor).shape == port.shape
               ? view
               : view.reshaped(local_shape(port, spec_.pass));
  };
  return {.context = context_,
          .engine = engine_,
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
                           : gradients_of(microbatch.execution_index).layers[local(layer)].inner,
          .workspace = workspace_[local(layer)],
          .weights = weights_[local(layer)]};
}

std::vector<LayerPass> Stage::passes_of(std::int64_t layer, std::span<const Microbatch> concurrent,
                                        Mode mode) {
  std::vector<LayerPass> passes;
  for (const Microbatch& microbatch : concurrent) {
    passes.push_back(pass_of(layer, microbatch, mode));
  }
  return passes;
}

}  // namespace strata::nn
