#include "stage_memory.hpp"

#include <array>

#include "strata/ops/split_cross_entropy.hpp"

namespace strata::nn {
namespace {

bool holds_last(const Model& model, const StageSpec& spec) {
  return spec.layers.end == model.layer_count();
}

std::int64_t logit_rows(const Model& model, const StageSpec& spec) {
  return rows_at(model.output(), spec.pass.microbatch);
}

}  // namespace

bool Stage::gradient_replaces_output(const Model& model, const StageSpec& spec) {
  const Layer& last = model.layer(model.layer_count() - 1);
  return holds_last(model, spec) && !last.is_view() && !last.backward_reads_output();
}

Stage::ActivationSlot Stage::carve_activations(const Model& model, const StageSpec& spec,
                                               Carver& carver, Carver& remade) {
  ActivationSlot slot;
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    const Layer& layer = model.layer(i);
    // A view's output is its input; the pass resolves it.
    slot.outputs.push_back(
        layer.is_view() ? TensorView()
                        : carver.take(local_shape(layer.output(), spec.pass), spec.pass.dtype));
    slot.saved.emplace_back();
    remade.rewind();
    for (const SavedSpec& saved : layer.saved(spec.pass)) {
      Carver& from = saved.keep == Keep::kKept ? carver : remade;
      slot.saved.back().push_back(from.take(saved.tensor));
    }
  }
  return slot;
}

namespace {

/// Whether the output of layer `i` is what the stage gives, be it under another shape.
bool is_stage_output(const Model& model, const StageSpec& spec, std::int64_t i) {
  while (i + 1 < spec.layers.end && model.layer(i + 1).is_view()) {
    ++i;
  }
  return i + 1 == spec.layers.end;
}

/// Elements of the largest gradient between two layers of the stage.
std::int64_t largest_inner_gradient(const Model& model, const StageSpec& spec) {
  std::int64_t largest = 0;
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    if (!model.layer(i).is_view() && !is_stage_output(model, spec, i)) {
      largest = std::max(largest, local_shape(model.layer(i).output(), spec.pass).count());
    }
  }
  return largest;
}

}  // namespace

/// The first stage's input has no gradient, and neither have the views that lead it, but what the
/// next stage sends always has a place of its own. Under kFused the gradients between layers take
/// two places in turn.
Stage::GradientSlot Stage::carve_gradients(const Model& model, const StageSpec& spec,
                                           Carver& carver, Carver& shared) {
  const bool fused = spec.order == BackwardOrder::kFused;
  const Shape turn_shape{fused ? largest_inner_gradient(model, spec) : 0};
  const auto take_turns = [&] {
    shared.rewind();
    return std::array<TensorView, 2>{shared.take(turn_shape, spec.pass.dtype),
                                     shared.take(turn_shape, spec.pass.dtype)};
  };
  const std::array<TensorView, 2> turns = take_turns();
  std::size_t turn = 0;
  GradientSlot slot;
  bool wanted = spec.layers.begin != 0;
  slot.outputs.push_back(
      wanted ? carver.take(local_shape(model.layer(spec.layers.begin).input(), spec.pass),
                           spec.pass.dtype)
             : TensorView());
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    const Layer& layer = model.layer(i);
    const Shape shape = local_shape(layer.output(), spec.pass);
    const bool last = i + 1 == spec.layers.end;
    const TensorView previous = slot.outputs.back();
    if (layer.is_view() && (wanted || !last)) {
      slot.outputs.push_back(previous.empty() ? TensorView() : previous.reshaped(shape));
      continue;
    }
    wanted = true;
    if (last && gradient_replaces_output(model, spec)) {
      slot.outputs.emplace_back();
    } else if (fused && !is_stage_output(model, spec, i)) {
      const TensorView& place = turns[turn++ % 2];
      slot.outputs.push_back(place.empty() ? TensorView()
                                           : place.flat_slice(0, shape.count()).reshaped(shape));
    } else {
      slot.outputs.push_back(carver.take(shape, spec.pass.dtype));
    }
  }
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    slot.inner.emplace_back();
    take_turns();
    for (const TensorSpec& gradient : model.layer(i).gradients(spec.pass)) {
      slot.inner.back().push_back((fused ? shared : carver).take(gradient));
    }
  }
  return slot;
}

std::vector<std::vector<TensorView>> Stage::carve_workspace(const Model& model,
                                                            const StageSpec& spec, Carver& carver) {
  std::vector<std::vector<TensorView>> workspace;
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    carver.rewind();
    workspace.emplace_back();
    for (const TensorSpec& needed : model.layer(i).workspace(spec.pass)) {
      workspace.back().push_back(carver.take(needed));
    }
  }
  return workspace;
}

/// The parts of all shards, those of the own, and the sums.
std::vector<TensorView> Stage::carve_loss(const Model& model, const StageSpec& spec,
                                          Carver& carver) {
  carver.rewind();
  if (!holds_last(model, spec) || model.output().placement != Placement::kFeatures) {
    return {};
  }
  const std::int64_t rows = logit_rows(model, spec);
  const DType dtype = compute_dtype(spec.pass.dtype);
  return {carver.take(Shape{spec.pass.shards.count, rows, ops::kCrossEntropyParts}, dtype),
          carver.take(Shape{spec.pass.shards.own.count(), rows, ops::kCrossEntropyParts}, dtype),
          carver.take(Shape{rows}, dtype)};
}

LayerTraffic Stage::traffic(const Model& model, const StageSpec& spec) {
  LayerTraffic traffic;
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    traffic += model.layer(i).traffic(spec.pass);
  }
  if (holds_last(model, spec) && model.output().placement == Placement::kFeatures) {
    traffic += exchange_of(
        spec.pass,
        static_cast<double>(spec.pass.shards.count * logit_rows(model, spec) *
                            ops::kCrossEntropyParts * size_bytes(compute_dtype(spec.pass.dtype))));
  }
  return traffic;
}

std::vector<MemoryItem> Stage::memory(const Model& model, const StageSpec& spec) {
  Carver activations(nullptr);
  Carver remade(nullptr);
  Carver inputs(nullptr);
  Carver gradients(nullptr);
  Carver shared(nullptr);
  Carver workspace(nullptr);
  carve_activations(model, spec, activations, remade);
  inputs.take(local_shape(model.layer(spec.layers.begin).input(), spec.pass), spec.pass.dtype);
  carve_gradients(model, spec, gradients, shared);
  carve_workspace(model, spec, workspace);
  carve_loss(model, spec, workspace);
  return {{"activations", spec.slots.activations * activations.bytes()},
          {"activations made again", remade.bytes()},
          {"received activations", spec.slots.inputs * inputs.bytes()},
          {"activation gradients", spec.slots.gradients * gradients.bytes()},
          {"shared gradients", shared.bytes()},
          {"workspace", workspace.bytes()}};
}

}  // namespace strata::nn
