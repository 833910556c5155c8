#include "strata/nn/stage.hpp"

#include <algorithm>

#include "strata/ops/elementwise.hpp"
#include "strata/ops/split_cross_entropy.hpp"

#include "stage_memory.hpp"

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
      output_tensors_(model.crossing(spec.layers.end)) {
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

void Stage::forward(std::span<const Microbatch> together, Mode mode) {
  for (std::int64_t i = spec_.layers.begin; i < spec_.layers.end; ++i) {
    if (!model_.layer(i).is_view()) {
      model_.layer(i).forward_lanes(passes_of(i, together, mode));
      shards_.progress();
    }
  }
}

void Stage::loss(const Microbatch& microbatch, const ConstTensorView& targets, std::int64_t valid,
                 double gradient_scale, Mode mode) {
  require(is_last(), "the loss of a stage that is not the last");
  require(!losses_.empty(), "a loss of a stage that has no slot for one");
  const std::int64_t slot = microbatch.number % losses_.shape()[0];
  const TensorView sums = losses_.flat_slice(slot * ops::kLossElements, ops::kLossElements);
  const ConstTensorView output = outputs_of(microbatch).front();
  const TensorView gradient =
      mode == Mode::kTraining
          ? output_gradients_of(microbatch.turn).front().reshaped(output.shape())
          : TensorView();
  if (model_.loss() == LossKind::kMeanSquaredError) {
    ops::mean_squared_error(context_, output, targets.reshaped(output.shape()), valid,
                            gradient_scale, gradient, sums);
    return;
  }
  // A language model has a target for every token.
  const std::int64_t valid_rows = valid * rows_at(model_.output(), 1);
  if (model_.output().placement == Placement::kFeatures) {
    split_cross_entropy(output, targets, valid_rows, gradient_scale, gradient, sums);
  } else {
    ops::cross_entropy(context_, output, targets, valid_rows, gradient_scale, gradient, sums);
  }
}

std::vector<ops::LossSums> Stage::losses() {
  losses_on_host_.update(context_.stream());
  context_.synchronize();
  std::vector<ops::LossSums> losses;
  const std::int64_t slots = losses_.empty() ? 0 : losses_.shape()[0];
  for (std::int64_t i = 0; i < slots; ++i) {
    losses.push_back(ops::loss_sums_of(
        losses_on_host_.view().flat_slice(i * ops::kLossElements, ops::kLossElements)));
    ops::require_labels(losses.back(), model_.output().shape.back());
  }
  return losses;
}

void Stage::split_cross_entropy(const ConstTensorView& logits, const ConstTensorView& targets,
                                std::int64_t valid_rows, double gradient_scale,
                                const TensorView& gradient, const TensorView& sums) {
  const std::int64_t vocabulary = model_.output().shape.back();
  const std::int64_t rows = rows_at(model_.output(), microbatch());
  const grid::Range& own = shards_.own();
  const auto block = [&](const auto& tensor, std::int64_t s) {
    return shard_block(tensor, rows, vocabulary, shards_.shards(), own, s);
  };
  const auto first_id = [&](std::int64_t s) {
    return grid::even_part(vocabulary, shards_.shards(), s).begin;
  };
  const TensorView& all = loss_workspace_[0];
  const TensorView& mine = shards_.ranks() == 1 ? all : loss_workspace_[1];
  const TensorView& log_sums = loss_workspace_[2];
  const std::int64_t part = rows * ops::kCrossEntropyParts;
  for (std::int64_t s = own.begin; s < own.end; ++s) {
    ops::cross_entropy_parts(
        context_, block(logits, s), targets, first_id(s),
        mine.flat_slice((s - own.begin) * part, part).reshaped({rows, ops::kCrossEntropyParts}));
  }
  shards_.all_gather_parts(mine, all);
  ops::combine_cross_entropy(context_, shards_.steps(), all, targets, vocabulary, valid_rows,
                             log_sums, sums);
  for (std::int64_t s = own.begin; s < own.end && !gradient.empty(); ++s) {
    ops::cross_entropy_gradient(context_, block(logits, s), targets, first_id(s), log_sums,
                                valid_rows, gradient_scale, block(gradient, s));
  }
}

void Stage::remake(const LayerPass& pass, std::int64_t layer) {
  if (spec_.pass.recompute == Recompute::kNone) {
    return;
  }
  const std::vector<SavedSpec> saved = model_.layer(layer).saved(spec_.pass);
  if (std::any_of(saved.begin(), saved.end(),
                  [](const SavedSpec& spec) { return spec.keep == Keep::kRemade; })) {
    model_.layer(layer).remake(pass);
  }
}

std::vector<GradientSink::Target> Stage::targets_of(std::span<const Microbatch> together,
                                                    GradientSink& sink) {
  std::vector<GradientSink::Target> targets;
  for (const Microbatch& microbatch : together) {
    targets.push_back(sink.target(microbatch.number));
  }
  return targets;
}

void Stage::add_gradients(const LayerPass& pass, const LayerGradients& gradients) {
  if (!pass.added.empty()) {
    if (!gradients.added.empty()) {
      ops::copy(context_, gradients.output, gradients.added);
    }
    if (!gradients.added_sum.empty()) {
      ops::add(context_, gradients.added_sum,
               gradients.added.empty() ? gradients.output : gradients.added);
    }
  }
  if (!gradients.input_sum.empty()) {
    ops::add(context_, gradients.input_sum, gradients.input);
  }
}

void Stage::layer_backward_weight(std::int64_t layer, const Microbatch& microbatch,
                                  const LayerPass& pass, const GradientSink::Target& target,
                                  GradientSink& sink) {
  std::vector<ParameterViews> gradients;
  const std::string* name = nullptr;
  for (const PlacedParameter& placed : layout_.parameters) {
    if (placed.spec.layer != layer) {
      continue;
    }
    if (name == nullptr || *name != placed.spec.name) {
      gradients.emplace_back();
      name = &placed.spec.name;
    }
    gradients.back().push_back(
        target.gradients.flat_slice(placed.offset, placed.shape.count()).reshaped(placed.shape));
  }
  if (!gradients.empty()) {
    model_.layer(layer).backward_weight(pass, output_gradient(layer, microbatch.turn), gradients,
                                        target.accumulate);
    shards_.progress();
  }
  sink.layer_done(microbatch.number, layer);
}

void Stage::layer_backward_input(std::int64_t layer, std::span<const Microbatch> together,
                                 std::span<const LayerPass> passes) {
  std::vector<TensorView> outputs;
  std::vector<TensorView> inputs;
  for (std::size_t k = 0; k < together.size(); ++k) {
    remake(passes[k], layer);
    outputs.push_back(output_gradient(layer, together[k].turn));
    inputs.push_back(gradients_of(together[k].turn).layers[local(layer)].input);
  }
  model_.layer(layer).backward_input_lanes(passes, outputs, inputs);
  for (std::size_t k = 0; k < together.size(); ++k) {
    add_gradients(passes[k], gradients_of(together[k].turn).layers[local(layer)]);
  }
  shards_.progress();
}

void Stage::backward_input(std::span<const Microbatch> together, GradientSink& sink) {
  const bool fused = spec_.order == BackwardOrder::kFused;
  const std::vector<GradientSink::Target> targets =
      fused ? targets_of(together, sink) : std::vector<GradientSink::Target>();
  for (std::int64_t i = spec_.layers.end; i-- > spec_.layers.begin;) {
    const std::vector<LayerPass> passes = passes_of(i, together, Mode::kTraining);
    if (!model_.layer(i).is_view()) {
      layer_backward_input(i, together, passes);
    }
    for (std::size_t k = 0; fused && k < together.size(); ++k) {
      layer_backward_weight(i, together[k], passes[k], targets[k], sink);
    }
  }
}

void Stage::backward_weight(std::span<const Microbatch> together, GradientSink& sink) {
  if (spec_.order == BackwardOrder::kFused) {
    return;
  }
  const std::vector<GradientSink::Target> targets = targets_of(together, sink);
  for (std::int64_t i = spec_.layers.end; i-- > spec_.layers.begin;) {
    for (std::size_t k = 0; k < together.size(); ++k) {
      layer_backward_weight(i, together[k], pass_of(i, together[k], Mode::kTraining), targets[k],
                            sink);
    }
  }
}

ConstTensorView Stage::decode(const ConstTensorView& ids, std::int64_t past,
                              const std::vector<LayerCache>& caches) {
  require(is_first() && is_last(), "generation on a stage that has not all layers");
  const std::int64_t tokens = ids.count();
  const std::int64_t context = model_.input_shape()[0];
  ConstTensorView input = ids;
  for (std::int64_t i = spec_.layers.begin; i < spec_.layers.end; ++i) {
    const Layer& layer = model_.layer(i);
    LayerPass pass = pass_of(i, {.input = ids}, Mode::kEvaluation);
    pass.input = input;
    // One sequence of fewer tokens than the stage has memory for.
    pass.output =
        pass.output.flat_slice(0, pass.output.count() / (microbatch() * context) * tokens);
    if (layer.output().placement != Placement::kFeatures) {
      pass.output =
          pass.output.reshaped(layer.output().shape.tail().prepended(tokens).prepended(1));
    }
    const Decoding decoding{
        .past = past, .keys = caches[local(i)].keys, .values = caches[local(i)].values};
    pass.decoding = &decoding;
    layer.forward(pass);
    input = pass.output;
  }
  return input;
}

}  // namespace strata::nn
