#include <algorithm>
#include <iterator>

#include "strata/core/error.hpp"
#include "strata/device/profile_range.hpp"
#include "strata/nn/stage.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"

namespace strata::nn {
namespace {

/// The pass that a CUDA graph belongs to.
enum class PassKind : std::int64_t { kForward, kBackwardInput, kBackwardWeight };

}  // namespace

bool Stage::record_passes() {
  const bool joins = model_.joins_lanes() && lanes_ != nullptr && lanes_->ranks() > 1;
  if (shards_.ranks() > 1 || joins) {
    return false;
  }
  graph_cache_.enable();
  // The loader's samples have a new address in every microbatch; receive buffers do not.
  first_recorded_ = spec_.layers.begin;
  for (std::int64_t i = spec_.layers.begin; is_first() && i < spec_.layers.end; ++i) {
    const LayerSources& sources = model_.sources(i);
    if (sources.input == kModelInput || sources.added == kModelInput) {
      first_recorded_ = i + 1;
    }
  }
  return true;
}

void Stage::progress() {
  if (!graph_cache_.is_recording()) {
    engine_.progress();
  }
}

void Stage::run(ops::GraphCache::Key key, std::span<const Microbatch> concurrent,
                const grid::Range& layers, const std::function<void()>& work) {
  if (layers.count() == 0) {
    return;
  }
  if (!graph_cache_.is_enabled() || layers.begin < recorded().begin ||
      layers.end > recorded().end) {
    work();
    return;
  }
  // The key holds all that the pass depends on besides the stage. Dropout is relative to the first
  // sample.
  const std::int64_t first_sample = concurrent.front().first_sample;
  const auto slot_in = [](std::int64_t execution_index, std::int64_t slots) {
    return slots == 0 ? 0 : execution_index % slots;
  };
  key.insert(key.end(), {layers.begin, layers.end});
  for (const Microbatch& microbatch : concurrent) {
    key.insert(key.end(), {slot_in(microbatch.execution_index, std::ssize(activation_slots_)),
                           slot_in(microbatch.execution_index, std::ssize(input_slots_)),
                           slot_in(microbatch.execution_index, std::ssize(gradient_slots_)),
                           microbatch.first_sample - first_sample});
    if (counts_microbatches_) {
      key.push_back(microbatch.number);
    }
  }
  ops::set_sample_origin(context_, first_sample);
  graph_cache_.run(key, work);
  progress();
}

void Stage::keep_places(const Microbatch& microbatch) {
  const ActivationSlot& slot = slot_of(microbatch.execution_index);
  const auto keep = [&](const ConstTensorView& from, const TensorView& to) {
    if (!from.empty() && !to.empty()) {
      copy(from, to);
    }
  };
  keep(microbatch.places.document_starts, slot.document_starts);
  keep(microbatch.places.positions, slot.positions);
}

void Stage::forward(std::span<const Microbatch> concurrent, Mode mode) {
  std::ranges::for_each(concurrent, [&](const Microbatch& m) { keep_places(m); });
  const bool awaits = weight_source_ != nullptr && concurrent.front().execution_index == 0;
  // Before each piece the pass waits for weights.
  for (std::int64_t begin = spec_.layers.begin; begin < spec_.layers.end;) {
    std::int64_t end = begin + 1;
    while (end < spec_.layers.end && end != recorded().begin && end != recorded().end &&
           !(awaits && weight_source_->waits_before(end))) {
      ++end;
    }
    if (awaits) {
      weight_source_->await(end - 1);
    }
    const auto pass = [&] {
      for (std::int64_t i = begin; i < end; ++i) {
        if (!model_.layer(i).is_view() && !in_pieces(model_, spec_, i)) {
          const device::ProfileRange range(model_.layer(i).name());
          layer_forward(i, concurrent, mode);
        }
      }
    };
    if (mode == Mode::kEvaluation) {
      pass();
    } else {
      run({static_cast<std::int64_t>(PassKind::kForward)}, concurrent, {begin, end}, pass);
    }
    begin = end;
  }
}

void Stage::loss(const Microbatch& microbatch, const ConstTensorView& targets, std::int64_t valid,
                 double gradient_scale, Mode mode) {
  require(is_last(), "only the last stage has a loss");
  loss_->set_targets(microbatch.number, {targets, valid, gradient_scale,
                                         microbatch.places.document_starts, microbatch.references});
  if (const std::int64_t last = spec_.layers.end - 1; in_pieces(model_, spec_, last)) {
    if (mode == Mode::kEvaluation) {
      model_.layer(last).forward(pass_of(last, microbatch, mode));
    }
    return;
  }
  const ConstTensorView output = outputs_of(microbatch).front();
  loss_->compute(
      microbatch.number, 0, output,
      mode == Mode::kTraining
          ? output_gradients_of(microbatch.execution_index).front().reshaped(output.shape())
          : TensorView());
}

std::vector<MicrobatchLoss> Stage::losses() {
  if (!loss_) {
    context_.synchronize();
    return {};
  }
  return loss_->sums();
}

void Stage::recompute(const LayerPass& pass, std::int64_t layer) {
  const std::vector<SavedSpec> saved = model_.layer(layer).saved(spec_.pass);
  if (std::any_of(saved.begin(), saved.end(),
                  [](const SavedSpec& spec) { return spec.keep == Keep::kRecomputed; })) {
    model_.layer(layer).recompute(pass);
  }
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

void Stage::layer_forward(std::int64_t layer, std::span<const Microbatch> concurrent, Mode mode) {
  const Layer& of = model_.layer(layer);
  const std::vector<LayerPass> passes = passes_of(layer, concurrent, mode);
  const bool joined = of.joined() != nullptr && mode == Mode::kTraining;
  if (joined) {
    of.joined()->forward_lanes(passes);
    progress();
  }
  for (const LayerPass& pass : passes) {
    if (!joined) {
      of.forward(pass);
      progress();
    }
    if (output_observer_ && mode == Mode::kTraining) {
      output_observer_(layer, pass);
    }
  }
}

void Stage::layer_backward(std::int64_t layer, std::span<const Microbatch> concurrent, Wants wants,
                           std::span<const GradientSink::Target> targets) {
  const Layer& of = model_.layer(layer);
  const bool trains = !parameters_[local(layer)].empty() && !model_.is_frozen(layer);
  // The loss is part of a head that works in pieces.
  const bool has_loss = in_pieces(model_, spec_, layer);
  const bool changes = layer >= model_.first_changing_layer() || has_loss;
  if (wants == Wants::kBoth && !trains && !has_loss) {
    wants = Wants::kInput;
  }
  if (of.is_view() || !(wants == Wants::kWeights ? trains : changes)) {
    return;
  }
  if (wants == Wants::kBoth && of.joined() != nullptr) {
    layer_backward(layer, concurrent, Wants::kInput, {});
    layer_backward(layer, concurrent, Wants::kWeights, targets);
    return;
  }
  const device::ProfileRange range(of.name());
  std::vector<LayerPass> passes = passes_of(layer, concurrent, Mode::kTraining);
  const bool joined = wants == Wants::kInput && of.joined() != nullptr;
  for (std::size_t k = 0; k < passes.size(); ++k) {
    LayerPass& pass = passes[k];
    const std::int64_t index = concurrent[k].execution_index;
    const LayerGradients& gradients = gradients_of(index).layers[local(layer)];
    pass.output_gradient = output_gradient(layer, index);
    pass.input_gradient = gradients.input;
    if (wants_weights(wants)) {
      pass.weight_gradients = gradients_in(targets[k].gradients, layer);
      pass.accumulate = targets[k].accumulate;
    }
    if (wants_input(wants)) {
      recompute(pass, layer);
    }
    if (!joined) {
      of.backward(pass, wants);
      if (wants_input(wants)) {
        add_gradients(pass, gradients);
      }
      progress();
    }
  }
  if (joined) {
    of.joined()->backward_lanes(passes);
    for (std::size_t k = 0; k < passes.size(); ++k) {
      add_gradients(passes[k], gradients_of(concurrent[k].execution_index).layers[local(layer)]);
    }
    progress();
  }
}

void Stage::backward_input(std::span<const Microbatch> concurrent, GradientSink& sink) {
  if (spec_.order == BackwardOrder::kFused) {
    backward_to_sink(concurrent, sink);
    return;
  }
  for (const grid::Range& layers : {recorded(), before_recorded()}) {
    run({static_cast<std::int64_t>(PassKind::kBackwardInput)}, concurrent, layers, [&] {
      for (std::int64_t i = layers.end; i-- > layers.begin;) {
        layer_backward(i, concurrent, Wants::kInput, {});
      }
    });
  }
}

void Stage::backward_weight(std::span<const Microbatch> concurrent, GradientSink& sink) {
  if (spec_.order == BackwardOrder::kSplit) {
    backward_to_sink(concurrent, sink);
  }
}

void Stage::backward_to_sink(std::span<const Microbatch> concurrent, GradientSink& sink) {
  const Wants wants = spec_.order == BackwardOrder::kFused ? Wants::kBoth : Wants::kWeights;
  std::vector<GradientSink::Target> targets;
  ops::GraphCache::Key key{static_cast<std::int64_t>(PassKind::kBackwardWeight)};
  for (const Microbatch& microbatch : concurrent) {
    const GradientSink::Target& target =
        targets.emplace_back(sink.begin_microbatch(microbatch.number, spec_.layers));
    key.insert(key.end(), {reinterpret_cast<std::intptr_t>(target.gradients.raw()),
                           static_cast<std::int64_t>(target.accumulate)});
  }
  // Between two pieces the sink acts.
  for (std::int64_t end = spec_.layers.end; end > spec_.layers.begin;) {
    std::int64_t begin = end - 1;
    while (begin > spec_.layers.begin && begin != recorded().begin && begin != recorded().end &&
           !acts_after(concurrent, begin, sink)) {
      --begin;
    }
    run(key, concurrent, {begin, end}, [&] {
      for (std::int64_t i = end; i-- > begin;) {
        layer_backward(i, concurrent, wants, targets);
      }
    });
    for (std::int64_t i = end; i-- > begin;) {
      for (const Microbatch& microbatch : concurrent) {
        sink.layer_done(microbatch.number, i);
      }
    }
    end = begin;
  }
}

bool Stage::acts_after(std::span<const Microbatch> concurrent, std::int64_t layer,
                       const GradientSink& sink) {
  return std::ranges::any_of(concurrent, [&](const Microbatch& microbatch) {
    return sink.acts_on(microbatch.number, layer);
  });
}

TensorView Stage::part_of_tokens(const TensorView& whole, const Port& port,
                                 std::int64_t tokens) const {
  const std::int64_t most = microbatch() * model_.input_shape()[0];
  const TensorView part = whole.flat_slice(0, whole.count() / most * tokens);
  return port.placement == Placement::kFeatures
             ? part
             : part.reshaped(port.shape.tail().prepended(tokens).prepended(1));
}

std::vector<TensorView> Stage::decode_inputs(std::int64_t rows) const {
  std::vector<TensorView> inputs;
  for (std::size_t i = 0; i < input_tensors_.size() && !is_first(); ++i) {
    inputs.push_back(part_of_tokens(inputs_of(0)[i], model_.port_of(input_tensors_[i]), rows));
  }
  return inputs;
}

std::vector<ConstTensorView> Stage::decode(const ConstTensorView& ids, std::int64_t tokens,
                                           std::span<const CachedSequence> sequences) {
  const std::int64_t rows = ids.count();
  const std::vector<TensorView> inputs = decode_inputs(rows);
  std::vector<Decoding::Sequence> of_layer(sequences.size());
  const Decoding decoding{.tokens = tokens, .sequences = of_layer};
  std::vector<ConstTensorView> made;
  const auto read = [&](std::int64_t tensor) -> ConstTensorView {
    if (tensor >= spec_.layers.begin) {
      return made[local(tensor)];
    }
    const auto at = std::ranges::find(input_tensors_, tensor) - input_tensors_.begin();
    return is_first() ? ids : ConstTensorView(inputs[static_cast<std::size_t>(at)]);
  };
  for (std::int64_t i = spec_.layers.begin; i < spec_.layers.end; ++i) {
    const Layer& layer = model_.layer(i);
    LayerPass pass = pass_of(i, {.input = ids}, Mode::kEvaluation);
    pass.input = read(model_.sources(i).input);
    if (const auto added = model_.sources(i).added) {
      pass.added = read(*added);
    }
    pass.output = part_of_tokens(pass.output, layer.output(), rows);
    std::ranges::transform(sequences, of_layer.begin(), [&](const CachedSequence& sequence) {
      const LayerCache& cache = sequence.caches[local(i)];
      return Decoding::Sequence{sequence.past, cache.keys, cache.values};
    });
    pass.decoding = &decoding;
    layer.forward(pass);
    made.emplace_back(pass.output);
  }
  std::vector<ConstTensorView> outputs;
  std::ranges::transform(output_tensors_, std::back_inserter(outputs), read);
  return outputs;
}

}  // namespace strata::nn
