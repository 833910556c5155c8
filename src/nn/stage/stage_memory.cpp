#include "stage/stage_memory.hpp"

#include "stage/gradient_plan.hpp"

namespace strata::nn {
namespace {

bool holds_last(const Model& model, const StageSpec& spec) {
  return spec.layers.end == model.layer_count();
}

}  // namespace

bool Stage::gradient_overwrites_output(const Model& model, const StageSpec& spec) {
  const std::int64_t i = model.layer_count() - 1;
  const Layer& last = model.layer(i);
  return holds_last(model, spec) && !last.is_view() && !last.backward_reads_output() &&
         !model.sources(i).added;
}

bool Stage::in_pieces(const Model& model, const StageSpec& spec, std::int64_t layer) {
  return spec.pass.loss_pieces > 1 && layer + 1 == model.layer_count();
}

Stage::ActivationSlot Stage::allocate_activations(const Model& model, const StageSpec& spec,
                                                  Arenas& arenas) {
  ArenaAllocator& allocator = arenas[index_of(Arena::kActivations)];
  ArenaAllocator& recomputed = arenas[index_of(Arena::kRecomputed)];
  ActivationSlot slot;
  const auto places = [&](bool wanted, DType dtype) {
    return wanted ? allocator.take(model.input_shape().prepended(spec.pass.microbatch), dtype)
                  : TensorView();
  };
  slot.document_starts = places(model.reads_document_starts(spec.layers), DType::kUint32);
  slot.positions = places(model.reads_positions(spec.layers), DType::kInt64);
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    const Layer& layer = model.layer(i);
    // A view has no memory of its own, and logits in pieces are in the workspace.
    slot.outputs.push_back(
        layer.is_view() || in_pieces(model, spec, i)
            ? TensorView()
            : allocator.take(local_shape(layer.output(), spec.pass), spec.pass.dtype));
    slot.saved.emplace_back();
    recomputed.rewind();
    for (const SavedSpec& saved : layer.saved(spec.pass)) {
      ArenaAllocator& from = saved.keep == Keep::kKept ? allocator : recomputed;
      slot.saved.back().push_back(from.take(saved.tensor));
    }
  }
  return slot;
}

std::vector<TensorView> Stage::allocate_inputs(const Model& model, const StageSpec& spec,
                                               Arenas& arenas) {
  ArenaAllocator& allocator = arenas[index_of(Arena::kInputs)];
  std::vector<TensorView> inputs;
  for (const std::int64_t tensor : model.boundary_tensors(spec.layers.begin)) {
    inputs.push_back(
        allocator.take(local_shape(model.port_of(tensor), spec.pass), spec.pass.dtype));
  }
  return inputs;
}

Stage::GradientSlot Stage::allocate_gradients(const Model& model, const StageSpec& spec,
                                              Arenas& arenas) {
  ArenaAllocator& allocator = arenas[index_of(Arena::kGradients)];
  ArenaAllocator& shared = arenas[index_of(Arena::kShared)];
  const GradientPlan plan = plan_gradients(model, spec);
  std::vector<Interval> intervals;
  for (const GradientPlan::Piece& piece : plan.pieces) {
    if (piece.home == GradientPlan::Home::kShared) {
      intervals.push_back(
          {.bytes = ArenaAllocator::bytes_of(piece.tensor.shape, piece.tensor.dtype),
           .begin = piece.begin,
           .end = piece.end});
    }
  }
  const std::vector<std::int64_t> offsets = assign_offsets(intervals);
  auto offset = offsets.begin();
  std::vector<TensorView> views;
  for (std::int64_t i = 0; i < std::ssize(plan.pieces); ++i) {
    const GradientPlan::Piece& piece = plan.pieces[static_cast<std::size_t>(i)];
    if (piece.home == GradientPlan::Home::kShared) {
      shared.move_to(*offset++);
      views.push_back(shared.take(piece.tensor));
    } else {
      const bool replaces = gradient_overwrites_output(model, spec) && i == plan.received.front();
      views.push_back(replaces ? TensorView() : allocator.take(piece.tensor));
    }
  }

  const auto view_of = [&](std::int64_t piece) {
    return piece == GradientPlan::kNone ? TensorView() : views[static_cast<std::size_t>(piece)];
  };
  const auto views_of = [&](const std::vector<std::int64_t>& pieces) {
    std::vector<TensorView> list;
    std::transform(pieces.begin(), pieces.end(), std::back_inserter(list), view_of);
    return list;
  };
  GradientSlot slot{.received = views_of(plan.received), .sent = views_of(plan.sent)};
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    const GradientPlan::LayerGradients& planned =
        plan.layers[static_cast<std::size_t>(i - spec.layers.begin)];
    TensorView input = view_of(planned.input);
    if (!input.empty()) {
      input = input.reshaped(local_shape(model.layer(i).input(), spec.pass));
    }
    slot.layers.push_back({.output = view_of(planned.output),
                           .input = input,
                           .input_sum = view_of(planned.input_sum),
                           .added = view_of(planned.added),
                           .added_sum = view_of(planned.added_sum),
                           .inner = views_of(planned.inner)});
  }
  return slot;
}

std::vector<std::vector<TensorView>> Stage::allocate_workspace(const Model& model,
                                                               const StageSpec& spec,
                                                               Arenas& arenas) {
  ArenaAllocator& allocator = arenas[index_of(Arena::kWorkspace)];
  std::vector<std::vector<TensorView>> workspace;
  for (std::int64_t i = spec.layers.begin; i < spec.layers.end; ++i) {
    allocator.rewind();
    workspace.emplace_back();
    for (const TensorSpec& needed : model.layer(i).workspace(spec.pass)) {
      workspace.back().push_back(allocator.take(needed));
    }
  }
  return workspace;
}

std::pair<std::vector<TensorView>, std::vector<TensorView>> Stage::allocate_loss(
    const Model& model, const StageSpec& spec, Arenas& arenas) {
  std::pair<std::vector<TensorView>, std::vector<TensorView>> views;
  if (!holds_last(model, spec)) {
    return views;
  }
  ArenaAllocator& workspace = arenas[index_of(Arena::kWorkspace)];
  // The head's pass contains the loss of pieces; its workspace is the last one.
  if (spec.pass.loss_pieces == 1) {
    workspace.rewind();
  }
  for (const TensorSpec& needed :
       Loss::workspace(model.output(), spec.pass, model.loss_options())) {
    views.first.push_back(workspace.take(needed));
  }
  const std::int64_t microbatches = spec.slots.losses * spec.pass.concurrent_lanes;
  for (const TensorSpec& needed :
       Loss::kept(model.loss_options(), model.output(), spec.pass, microbatches)) {
    views.second.push_back(arenas[index_of(Arena::kLosses)].take(needed));
  }
  return views;
}

std::vector<MemoryItem> Stage::arenas_of(const Model& model, const StageSpec& spec) {
  struct Item {
    const char* name;
    std::int64_t times;
  };
  const std::int64_t lanes = spec.pass.concurrent_lanes;
  const std::vector<Item> items = slot_list<Arena, Item>(
      {{Arena::kActivations, {"activations", lanes * spec.slots.activations}},
       {Arena::kRecomputed, {"recomputed activations", lanes}},
       {Arena::kInputs, {"activation receive buffers", lanes * spec.slots.inputs}},
       {Arena::kGradients, {"activation gradients", lanes * spec.slots.gradients}},
       {Arena::kShared, {"shared gradient buffers", lanes}},
       {Arena::kWorkspace, {"workspace", 1}},
       {Arena::kLosses, {"per-step losses", 1}}});
  Arenas arenas(items.size());
  allocate_activations(model, spec, arenas);
  allocate_inputs(model, spec, arenas);
  allocate_gradients(model, spec, arenas);
  allocate_workspace(model, spec, arenas);
  allocate_loss(model, spec, arenas);
  std::vector<MemoryItem> memory;
  memory.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    memory.push_back({items[i].name, items[i].times * arenas[i].bytes()});
  }
  return memory;
}

std::vector<MemoryItem> Stage::memory(const Model& model, std::span<const StageSpec> chunks) {
  std::vector<MemoryItem> items = arenas_of(model, chunks.front());
  for (const StageSpec& chunk : chunks.subspan(1)) {
    const std::vector<MemoryItem> own = arenas_of(model, chunk);
    for (std::size_t i = 0; i < items.size(); ++i) {
      items[i].bytes = is_of_a_pass(static_cast<Arena>(i)) ? std::max(items[i].bytes, own[i].bytes)
                                                           : items[i].bytes + own[i].bytes;
    }
  }
  return items;
}

std::vector<device::Buffer> Stage::pass_buffers(const device::Device& device, const Model& model,
                                                std::span<const StageSpec> chunks) {
  const std::vector<MemoryItem> items = memory(model, chunks);
  std::vector<device::Buffer> buffers;
  for (std::size_t i = 0; i < items.size(); ++i) {
    buffers.emplace_back(device, is_of_a_pass(static_cast<Arena>(i)) ? items[i].bytes : 0);
  }
  return buffers;
}

}  // namespace strata::nn
