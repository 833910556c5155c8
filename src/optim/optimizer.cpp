#include "strata/optim/optimizer.hpp"

#include <algorithm>

#include "strata/core/error.hpp"
#include "strata/ops/elementwise.hpp"

namespace strata::optim {

std::vector<std::string> Optimizer::state_names(const OptimizerOptions& options,
                                                nn::ParameterRule rule) {
  if (rule != nn::ParameterRule::kTrained) {
    return {};
  }
  switch (options.kind) {
    case OptimizerKind::kAuto:
      break;
    case OptimizerKind::kSgd:
      return options.momentum != 0.0 ? std::vector<std::string>{"momentum"}
                                     : std::vector<std::string>{};
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamw:
      return {"adam_m", "adam_v"};
    case OptimizerKind::kAdagrad:
      return {"adagrad_sum"};
  }
  require(false, "an optimizer without a kind");
  return {};
}

namespace {

std::int64_t state_bytes(const OptimizerOptions& options, const nn::ParameterLayout& layout,
                         const BucketPlan& plan, std::int64_t data_rank, DType dtype) {
  const auto states = static_cast<std::int64_t>(Optimizer::state_names(options).size());
  return states * state_elements(layout, plan, data_rank) * size_bytes(compute_dtype(dtype));
}

std::int64_t master_bytes(const BucketPlan& plan, std::int64_t data_rank, DType dtype) {
  return dtype == compute_dtype(dtype)
             ? 0
             : plan.owned_elements(data_rank) * size_bytes(compute_dtype(dtype));
}

}  // namespace

std::vector<nn::MemoryItem> Optimizer::memory(const OptimizerOptions& options,
                                              const nn::ParameterLayout& layout,
                                              const BucketPlan& plan, std::int64_t data_rank,
                                              DType dtype) {
  std::vector<nn::MemoryItem> items{
      {"optimizer state", state_bytes(options, layout, plan, data_rank, dtype)}};
  if (dtype != compute_dtype(dtype)) {
    items.push_back({"master weights", master_bytes(plan, data_rank, dtype)});
  }
  return items;
}

Optimizer::Optimizer(ops::Context& context, const OptimizerOptions& options,
                     const nn::ParameterLayout& layout, const BucketPlan& plan,
                     std::int64_t data_rank, const TensorView& weights)
    : context_(context),
      options_(options),
      weights_(weights),
      pieces_(owned_pieces(layout, plan, data_rank)),
      state_memory_(context.device(),
                    state_bytes(options, layout, plan, data_rank, weights.dtype())),
      master_memory_(context.device(), master_bytes(plan, data_rank, weights.dtype())) {
  require(weights.count() == layout.weight_elements, "{} weights for a layout of {}",
          weights.count(), layout.weight_elements);
  for (const OwnedPiece& piece : pieces_) {
    const nn::ParameterSpec& spec = layout.parameters[piece.parameter].spec;
    const UpdateScales scales = scales_of(spec, options.decay_scope, options.groups);
    const Rule rule{.rule = spec.rule,
                    .keep = spec.keep,
                    .rate = scales.learning_rate,
                    .decay = scales.weight_decay * options.weight_decay};
    if (runs_.empty() || runs_.back().bucket != piece.bucket || runs_.back().rule != rule) {
      runs_.push_back({.bucket = piece.bucket,
                       .arena_offset = piece.arena_offset,
                       .owned_offset = piece.owned_offset,
                       .state_offset = piece.state_offset,
                       .rule = rule});
    }
    runs_.back().count = piece.owned_offset + piece.range.count() - runs_.back().owned_offset;
  }
  const std::int64_t elements = state_elements(layout, plan, data_rank);
  const DType dtype = compute_dtype(weights.dtype());
  const std::size_t count = state_names(options).size();
  for (std::size_t i = 0; i < count; ++i) {
    states_.push_back(state_memory_.view(
        static_cast<std::int64_t>(i) * elements * size_bytes(dtype), Shape{elements}, dtype));
  }
  if (weights.dtype() != dtype) {
    masters_ = master_memory_.view(0, Shape{plan.owned_elements(data_rank)}, dtype);
  }
}

TensorView Optimizer::master(std::int64_t arena_offset, std::int64_t owned_offset,
                             std::int64_t count) const {
  return masters_.empty() ? weights_.flat_slice(arena_offset, count)
                          : masters_.flat_slice(owned_offset, count);
}

TensorView Optimizer::master(const OwnedPiece& piece) const {
  return master(piece.arena_offset, piece.owned_offset, piece.range.count());
}

TensorView Optimizer::state(std::size_t index, const OwnedPiece& piece) const {
  return states_[index].flat_slice(piece.state_offset, piece.range.count());
}

std::vector<TensorView> Optimizer::tensors() const {
  std::vector<TensorView> all = states_;
  if (!masters_.empty()) {
    all.push_back(masters_);
  }
  return all;
}

void Optimizer::write_weights() {
  for (const OwnedPiece& piece : pieces_) {
    if (!masters_.empty()) {
      ops::convert(context_, master(piece),
                   weights_.flat_slice(piece.arena_offset, piece.range.count()));
    }
  }
}

void Optimizer::update(std::size_t bucket, const ConstTensorView& gradients, double learning_rate,
                       double gradient_scale, std::int64_t step) {
  const auto [first, last] = std::equal_range(
      runs_.begin(), runs_.end(), Run{.bucket = bucket},
      [](const Run& left, const Run& right) { return left.bucket < right.bucket; });
  for (auto at = first; at != last; ++at) {
    const Run& run = *at;
    const ConstTensorView gradient = gradients.flat_slice(run.arena_offset, run.count);
    if (!update_run(run, gradient, learning_rate, gradient_scale, step) && !masters_.empty()) {
      ops::convert(context_, master(run.arena_offset, run.owned_offset, run.count),
                   weights_.flat_slice(run.arena_offset, run.count));
    }
  }
}

bool Optimizer::update_run(const Run& run, const ConstTensorView& gradient, double learning_rate,
                           double gradient_scale, std::int64_t step) {
  if (run.rule.rule == nn::ParameterRule::kFrozen) {
    return true;
  }
  const TensorView weight = master(run.arena_offset, run.owned_offset, run.count);
  if (run.rule.rule == nn::ParameterRule::kAverage) {
    ops::average_update(context_, weight, gradient, run.rule.keep);
    return false;
  }
  const auto state_of = [&](std::size_t index) {
    return index < states_.size() ? states_[index].flat_slice(run.state_offset, run.count)
                                  : TensorView();
  };
  learning_rate *= run.rule.rate;
  const double weight_decay = run.rule.decay;
  switch (options_.kind) {
    case OptimizerKind::kAuto:
      break;
    case OptimizerKind::kSgd:
      ops::sgd_update(context_, weight, gradient, state_of(0),
                      {.learning_rate = learning_rate,
                       .momentum = options_.momentum,
                       .nesterov = options_.nesterov,
                       .weight_decay = weight_decay,
                       .gradient_scale = gradient_scale});
      return false;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamw:
      ops::adam_update(
          context_, weight, gradient, state_of(0), state_of(1),
          {.learning_rate = learning_rate,
           .beta1 = options_.beta1,
           .beta2 = options_.beta2,
           .epsilon = options_.epsilon,
           .weight_decay = weight_decay,
           .decay = options_.kind == OptimizerKind::kAdamw ? ops::DecayKind::kDecoupled
                                                           : ops::DecayKind::kInGradient,
           .step = step,
           .gradient_scale = gradient_scale},
          masters_.empty() ? TensorView() : weights_.flat_slice(run.arena_offset, run.count));
      return true;
    case OptimizerKind::kAdagrad:
      ops::adagrad_update(context_, weight, gradient, state_of(0),
                          {.learning_rate = learning_rate,
                           .epsilon = options_.epsilon,
                           .weight_decay = weight_decay,
                           .gradient_scale = gradient_scale});
      return false;
  }
  return false;
}

}  // namespace strata::optim
