#include "strata/nn/stage.hpp"

#include <algorithm>
#include <utility>

#include "strata/core/error.hpp"

#include "stage/stage_memory.hpp"

namespace strata::nn {

Stage::Stage(ops::Context& context, comm::ProgressEngine& engine, comm::ShardGroup& shards,
             const Model& model, const StageSpec& spec, const ParameterLayout& layout,
             const TensorView& weights, comm::PartitionedGroup* lanes,
             const std::vector<device::Buffer>* pass_buffers, const FrozenWeights& frozen)
    : context_(context),
      engine_(engine),
      shards_(shards),
      lanes_(lanes),
      model_(model),
      spec_(spec),
      input_tensors_(model.boundary_tensors(spec.layers.begin)),
      output_tensors_(model.boundary_tensors(spec.layers.end)),
      graph_cache_(context) {
  require(weights.count() == layout.weight_elements && weights.dtype() == spec.pass.dtype,
          "the arena holds {} {} weights, the stage's layout has {} of {}", weights.count(),
          name_of(weights.dtype()), layout.weight_elements, name_of(spec.pass.dtype));
  require(shards.shards() == spec.pass.shards.count && shards.own() == spec.pass.shards.own &&
              model.shards() == spec.pass.shards.count,
          "a stage of {} shards, a tensor group of {} and a model of {}", spec.pass.shards.count,
          shards.shards(), model.shards());
  require(spec.pass.row_pieces == 1 || spec.pass.shards.count > 1,
          "{} pieces of rows with one shard", spec.pass.row_pieces);
  require(spec.pass.loss_pieces == 1 || spec.order == BackwardOrder::kFused ||
              spec.slots.gradients == 0,
          "{} pieces of the loss with a split backward pass", spec.pass.loss_pieces);
  require(!model.joins_lanes() || spec.slots.gradients == 0 ||
              (lanes != nullptr && lanes->own().count() == spec.pass.concurrent_lanes),
          "a stage with {} concurrent lanes needs the group of all lanes",
          spec.pass.concurrent_lanes);
  const std::vector<MemoryItem> items = arenas_of(model, spec);
  const auto is_lent = [&](std::size_t arena) {
    return pass_buffers != nullptr && is_of_a_pass(static_cast<Arena>(arena));
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    memory_.emplace_back(context.device(), is_lent(i) ? 0 : items[i].bytes);
  }
  Arenas arenas;
  for (std::size_t i = 0; i < items.size(); ++i) {
    arenas.emplace_back(&(is_lent(i) ? *pass_buffers : memory_)[i]);
  }
  // Passes of different microbatches share memory, concurrent lanes do not: each has its own part.
  const std::int64_t concurrent = spec.pass.concurrent_lanes;
  for (std::int64_t s = 0; s < spec.slots.activations * concurrent; ++s) {
    arenas[index_of(Arena::kRecomputed)].select_part(s % concurrent, concurrent);
    activation_slots_.push_back(allocate_activations(model, spec, arenas));
  }
  for (std::int64_t s = 0; s < spec.slots.inputs * concurrent; ++s) {
    input_slots_.push_back(allocate_inputs(model, spec, arenas));
  }
  for (std::int64_t s = 0; s < spec.slots.gradients * concurrent; ++s) {
    arenas[index_of(Arena::kShared)].select_part(s % concurrent, concurrent);
    gradient_slots_.push_back(allocate_gradients(model, spec, arenas));
  }
  workspace_ = allocate_workspace(model, spec, arenas);
  auto [loss_workspace, loss_kept] = allocate_loss(model, spec, arenas);
  if (is_last()) {
    loss_.emplace(context, shards, model.loss_options(), model.output(), spec.pass,
                  std::move(loss_workspace), loss_kept);
  }
  parameters_.resize(static_cast<std::size_t>(spec.layers.count()));
  add_parameters(layout, weights, Placed::kWithGradients);
  if (frozen.layout != nullptr) {
    add_parameters(*frozen.layout, frozen.weights, Placed::kWithoutGradients);
  }
  for (LayerParameters& parameters : parameters_) {
    std::ranges::stable_sort(parameters, {}, &ParameterSlice::parameter);
    weights_.push_back(
        views_of(parameters, [](const ParameterSlice& slice) { return slice.weight; }));
  }
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    counts_microbatches_ = counts_microbatches_ || model.layer(i).counts_microbatches();
  }
}

void Stage::add_parameters(const ParameterLayout& layout, const TensorView& weights, Placed which) {
  // A borrowed parameter without weights of its own uses the owner's, on this very stage.
  const auto weight_offset = [&](const PlacedParameter& placed) {
    if (placed.offset < layout.weight_elements) {
      return placed.offset;
    }
    return std::find_if(layout.parameters.begin(), layout.parameters.end(),
                        [&](const PlacedParameter& other) {
                          return other.spec.name == placed.spec.name && other.shard == placed.shard;
                        })
        ->offset;
  };
  for (const PlacedParameter& placed : layout.parameters) {
    if (placed.spec.layer < spec_.layers.begin || placed.spec.layer >= spec_.layers.end) {
      continue;
    }
    ParameterSlice& slice = parameters_[local(placed.spec.layer)].emplace_back();
    slice.parameter = placed.index;
    slice.weight =
        weights.flat_slice(weight_offset(placed), placed.shape.count()).reshaped(placed.shape);
    if (which == Placed::kWithGradients) {
      slice.gradient_offset = placed.offset;
    }
  }
}

template <typename View>
std::vector<ParameterViews> Stage::views_of(const LayerParameters& parameters, const View& view) {
  std::vector<ParameterViews> views;
  std::int64_t last = -1;
  for (const ParameterSlice& slice : parameters) {
    if (slice.parameter != last) {
      views.emplace_back();
      last = slice.parameter;
    }
    views.back().push_back(view(slice));
  }
  return views;
}

std::vector<ParameterViews> Stage::gradients_in(const TensorView& arena, std::int64_t layer) const {
  return views_of(parameters_[local(layer)], [&](const ParameterSlice& slice) {
    const Shape& shape = slice.weight.shape();
    return slice.gradient_offset
               ? arena.flat_slice(*slice.gradient_offset, shape.count()).reshaped(shape)
               : TensorView();
  });
}

void Stage::copy(const ConstTensorView& from, const TensorView& to) {
  device::copy_tensor(from, to, context_.stream());
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
  const auto kept = [](const ConstTensorView& given, const TensorView& copy) {
    return given.empty() ? ConstTensorView() : ConstTensorView(copy);
  };
  return {
      .context = context_,
      .engine = engine_,
      .shards = shards_,
      .shape = spec_.pass,
      .mode = mode,
      .loss = loss_ ? &*loss_ : nullptr,
      .number = microbatch.number,
      .lanes = lanes_,
      .first_sample = microbatch.first_sample,
      .input = read(sources.input),
      .places = {.document_starts = kept(microbatch.places.document_starts, slot.document_starts),
                 .positions = kept(microbatch.places.positions, slot.positions)},
      .added = sources.added ? read(*sources.added) : ConstTensorView(),
      .output = slot.outputs[local(layer)],
      .saved = TensorSlots(slot.saved[local(layer)]),
      .gradients =
          gradient_slots_.empty()
              ? TensorSlots()
              : TensorSlots(gradients_of(microbatch.execution_index).layers[local(layer)].inner),
      .workspace = TensorSlots(workspace_[local(layer)]),
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
