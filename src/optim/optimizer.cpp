#include "strata/optim/optimizer.hpp"

#include "strata/core/error.hpp"

namespace strata::optim {

std::vector<std::string> Optimizer::state_names(const OptimizerOptions& options) {
  switch (options.kind) {
    case OptimizerKind::kSgd:
      return options.momentum != 0.0 ? std::vector<std::string>{"momentum"}
                                     : std::vector<std::string>{};
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamw:
      return {"adam_m", "adam_v"};
    case OptimizerKind::kAdagrad:
      return {"adagrad_sum"};
  }
  return {};
}

nn::MemoryItem Optimizer::memory(const OptimizerOptions& options, const BucketPlan& plan,
                                 std::int64_t data_rank, DType dtype) {
  const auto states = static_cast<std::int64_t>(state_names(options).size());
  return {"optimizer state", states * plan.owned_elements(data_rank) * size_bytes(dtype)};
}

Optimizer::Optimizer(ops::Context& context, const OptimizerOptions& options,
                     const nn::ParameterLayout& layout, const BucketPlan& plan,
                     std::int64_t data_rank, DType dtype)
    : context_(context),
      options_(options),
      pieces_(owned_pieces(layout, plan, data_rank)),
      memory_(context.device(), memory(options, plan, data_rank, dtype).bytes) {
  for (const OwnedPiece& piece : pieces_) {
    const Shape& shape = layout.parameters[piece.parameter].spec.shape;
    decays_.push_back(options.decay_scope == DecayScope::kAll || shape.rank() >= 2);
  }
  const std::int64_t elements = plan.owned_elements(data_rank);
  const std::size_t count = state_names(options).size();
  for (std::size_t i = 0; i < count; ++i) {
    states_.push_back(memory_.view(static_cast<std::int64_t>(i) * elements * size_bytes(dtype),
                                   Shape{elements}, dtype));
  }
}

TensorView Optimizer::state(std::size_t index, const OwnedPiece& piece) const {
  return states_[index].flat_slice(piece.owned_offset, piece.range.count());
}

void Optimizer::update(std::size_t bucket, const TensorView& weights,
                       const ConstTensorView& gradients, double learning_rate,
                       double gradient_scale, std::int64_t step) {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const OwnedPiece& piece = pieces_[i];
    if (piece.bucket != bucket) {
      continue;
    }
    const TensorView weight = weights.flat_slice(piece.arena_offset, piece.range.count());
    const ConstTensorView gradient = gradients.flat_slice(piece.arena_offset, piece.range.count());
    const double decay = decays_[i] ? options_.weight_decay : 0.0;
    switch (options_.kind) {
      case OptimizerKind::kSgd:
        ops::sgd_update(context_, weight, gradient,
                        states_.empty() ? TensorView() : state(0, piece),
                        {.learning_rate = learning_rate,
                         .momentum = options_.momentum,
                         .nesterov = options_.nesterov,
                         .weight_decay = decay,
                         .gradient_scale = gradient_scale});
        break;
      case OptimizerKind::kAdam:
      case OptimizerKind::kAdamw:
        ops::adam_update(
            context_, weight, gradient, state(0, piece), state(1, piece),
            {.learning_rate = learning_rate,
             .beta1 = options_.beta1,
             .beta2 = options_.beta2,
             .epsilon = options_.epsilon,
             .weight_decay = decay,
             .decay = options_.kind == OptimizerKind::kAdamw ? ops::DecayKind::kDecoupled
                                                             : ops::DecayKind::kInGradient,
             .step = step,
             .gradient_scale = gradient_scale});
        break;
      case OptimizerKind::kAdagrad:
        ops::adagrad_update(context_, weight, gradient, state(0, piece),
                            {.learning_rate = learning_rate,
                             .epsilon = options_.epsilon,
                             .weight_decay = decay,
                             .gradient_scale = gradient_scale});
        break;
    }
  }
}

}  // namespace strata::optim
