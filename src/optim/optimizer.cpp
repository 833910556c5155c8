#include "strata/optim/optimizer.hpp"

#include <algorithm>
#include <tuple>

#include "strata/core/error.hpp"
#include "strata/ops/elementwise.hpp"

namespace strata::optim {

std::vector<nn::MemoryItem> OwnedTensors::memory(const Ownership& ownership, std::int64_t states,
                                                 DType dtype) {
  const std::int64_t element = size_bytes(compute_dtype(dtype));
  std::vector<nn::MemoryItem> items{
      {"optimizer state", states * ownership.state_elements() * element}};
  if (dtype != compute_dtype(dtype)) {
    items.push_back({"master weights", ownership.elements() * element});
  }
  return items;
}

OwnedTensors::OwnedTensors(const device::Device& device, const Ownership& ownership,
                           std::int64_t states, DType dtype, const TensorView& weights)
    : pieces_(ownership.pieces()) {
  const std::int64_t elements = ownership.state_elements();
  const std::int64_t bytes = elements * size_bytes(dtype);
  state_memory_ = device::Buffer(device, states * bytes);
  for (std::int64_t i = 0; i < states; ++i) {
    states_.push_back(state_memory_.view(i * bytes, Shape{elements}, dtype));
  }
  if (!weights.empty() && weights.dtype() == dtype) {
    require(weights.count() == ownership.layout.weight_elements, "{} weights for a layout of {}",
            weights.count(), ownership.layout.weight_elements);
    weights_ = weights;
    return;
  }
  master_memory_ = device::Buffer(device, ownership.elements() * size_bytes(dtype));
  masters_ = master_memory_.view(0, Shape{ownership.elements()}, dtype);
}

TensorView OwnedTensors::master(const OwnedPiece& piece) const {
  return masters_.empty() ? weights_.flat_slice(piece.arena_offset, piece.range.count())
                          : masters_.flat_slice(piece.owned_offset, piece.range.count());
}

TensorView OwnedTensors::state(std::size_t index, const OwnedPiece& piece) const {
  return index < states_.size() ? states_[index].flat_slice(piece.state_offset, piece.range.count())
                                : TensorView();
}

std::vector<TensorView> OwnedTensors::tensors() const {
  std::vector<TensorView> all = states_;
  if (!masters_.empty()) {
    all.push_back(masters_);
  }
  return all;
}

std::vector<std::string> UpdateRule::state_names(const OptimizerOptions& options,
                                                 const nn::ParameterSpec& spec) {
  if (spec.rule != nn::ParameterRule::kTrained) {
    return {};
  }
  switch (options.kind) {
    case OptimizerKind::kSgd:
      break;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamw:
      return {"adam_m", "adam_v"};
    case OptimizerKind::kAdagrad:
      return {"adagrad_sum"};
  }
  return options.momentum != 0.0 ? std::vector<std::string>{"momentum"}
                                 : std::vector<std::string>{};
}

std::int64_t UpdateRule::states(const OptimizerOptions& options) {
  return std::ssize(state_names(options, {}));
}

UpdateRule::UpdateRule(ops::Context& context, const OptimizerOptions& options,
                       const nn::ParameterLayout& layout, const OwnedTensors& owned,
                       const TensorView& weights)
    : context_(context),
      options_(options),
      owned_(owned),
      rounded_(weights.dtype() == compute_dtype(weights.dtype()) ? TensorView() : weights) {
  for (const OwnedPiece& piece : owned.pieces()) {
    const nn::ParameterSpec& spec = layout.parameters[piece.parameter].spec;
    const UpdateScales scales = scales_of(spec, options.decay_scope, options.groups);
    const Run run{.elements = piece,
                  .rule = spec.rule,
                  .keep = spec.keep,
                  .rate = scales.learning_rate,
                  .decay = scales.weight_decay * options.weight_decay};
    const auto alike = [](const Run& of) {
      return std::tuple(of.elements.bucket, of.rule, of.keep, of.rate, of.decay);
    };
    if (runs_.empty() || alike(runs_.back()) != alike(run)) {
      runs_.push_back(run);
    }
    OwnedPiece& all = runs_.back().elements;
    all.range.end = all.range.begin + piece.owned_offset + piece.range.count() - all.owned_offset;
  }
}

TensorView UpdateRule::rounded(const OwnedPiece& piece) const {
  return rounded_.empty() ? TensorView()
                          : rounded_.flat_slice(piece.arena_offset, piece.range.count());
}

void UpdateRule::round(const OwnedPiece& piece) {
  if (!rounded_.empty()) {
    ops::convert(context_, owned_.master(piece), rounded(piece));
  }
}

void UpdateRule::round_weights() {
  for (const OwnedPiece& piece : owned_.pieces()) {
    round(piece);
  }
}

void UpdateRule::update(std::size_t bucket, const ConstTensorView& gradients, double learning_rate,
                        double gradient_scale, std::int64_t step) {
  const auto bucket_of = [](const Run& run) { return run.elements.bucket; };
  for (auto run = std::ranges::lower_bound(runs_, bucket, {}, bucket_of);
       run != runs_.end() && run->elements.bucket == bucket; ++run) {
    update(*run, gradients.flat_slice(run->elements.arena_offset, run->elements.range.count()),
           learning_rate, gradient_scale, step);
  }
}

void UpdateRule::update(const Run& run, const ConstTensorView& gradient, double learning_rate,
                        double gradient_scale, std::int64_t step) {
  if (run.rule == nn::ParameterRule::kFrozen) {
    return;
  }
  const TensorView weight = owned_.master(run.elements);
  if (run.rule == nn::ParameterRule::kAverage) {
    ops::average_update(context_, weight, gradient, run.keep);
    round(run.elements);
    return;
  }
  const TensorView state = owned_.state(0, run.elements);
  learning_rate *= run.rate;
  switch (options_.kind) {
    case OptimizerKind::kSgd:
      ops::sgd_update(context_, weight, gradient, state,
                      {.learning_rate = learning_rate,
                       .momentum = options_.momentum,
                       .nesterov = options_.nesterov,
                       .weight_decay = run.decay,
                       .gradient_scale = gradient_scale});
      break;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamw:
      ops::adam_update(
          context_, weight, gradient, state, owned_.state(1, run.elements),
          {.learning_rate = learning_rate,
           .beta1 = options_.beta1,
           .beta2 = options_.beta2,
           .epsilon = options_.epsilon,
           .weight_decay = run.decay,
           .decay = options_.kind == OptimizerKind::kAdamw ? ops::DecayKind::kDecoupled
                                                           : ops::DecayKind::kInGradient,
           .step = step,
           .gradient_scale = gradient_scale},
          rounded(run.elements));
      return;
    case OptimizerKind::kAdagrad:
      ops::adagrad_update(context_, weight, gradient, state,
                          {.learning_rate = learning_rate,
                           .epsilon = options_.epsilon,
                           .weight_decay = run.decay,
                           .gradient_scale = gradient_scale});
      break;
  }
  round(run.elements);
}

}  // namespace strata::optim
