#include "strata/train/rank_state.hpp"

#include "strata/core/clock.hpp"

namespace strata::train {

StageState::StageState(ops::Context& context, const Plan& plan, const RankPlan& rank)
    : rank_(rank),
      weight_memory_(context.device(),
                     rank.layout.elements * size_bytes(plan.config.numerics.dtype)),
      weights_(weight_memory_.view(0, Shape{rank.layout.elements}, plan.config.numerics.dtype)),
      stage_(context, *plan.model, rank.layers, plan.config.batch.micro, rank.slots, weights_) {
  for (const nn::PlacedParameter& placed : rank.layout.parameters) {
    nn::initialise(placed, plan.config.run.seed, 0,
                   weights_.flat_slice(placed.offset, placed.shape.count()));
  }
}

void StageState::load_weights(const io::Checkpoint& checkpoint) {
  for (const nn::PlacedParameter& placed : rank_.layout.parameters) {
    const nn::ParameterSpec& spec = placed.spec;
    checkpoint.read("weights/" + spec.name, spec.shape, {0, spec.shape.count()},
                    weights_.flat_slice(placed.offset, spec.shape.count()));
  }
}

RankState::RankState(ops::Context& context, const Plan& plan, const RankPlan& rank,
                     comm::Groups& groups)
    : plan_(plan),
      rank_(rank),
      groups_(groups),
      stage_state_(context, plan, rank),
      reducer_(context, *groups.data, plan.lanes, rank.buckets, rank.reducer_sizes),
      optimizer_(context, plan.config.optimizer.options, rank.layout, rank.buckets, rank.place.data,
                 stage_state_.weights()),
      norm_(rank.layout, rank.buckets, plan.grid.data) {}

double RankState::update(double learning_rate, double gradient_scale, std::int64_t step) {
  const TensorView& weights = stage_state_.weights();
  std::vector<comm::Request> gathers;
  const std::vector<optim::Bucket>& buckets = rank_.buckets.buckets();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    optimizer_.update(b, reducer_.sums(), learning_rate, gradient_scale, step);
    std::vector<comm::Request> requests = comm::begin_all_gather_slices(
        *groups_.data, weights.flat_slice(buckets[b].elements.begin, buckets[b].elements.count()),
        buckets[b].slices);
    std::move(requests.begin(), requests.end(), std::back_inserter(gathers));
  }
  const double start = now_seconds();
  for (comm::Request& request : gathers) {
    request.wait();
  }
  return now_seconds() - start;
}

std::vector<io::TensorSlice> RankState::slices() const {
  const std::vector<std::string> states =
      optim::Optimizer::state_names(plan_.config.optimizer.options);
  std::vector<io::TensorSlice> slices;
  for (const optim::OwnedPiece& piece : optimizer_.pieces()) {
    const nn::ParameterSpec& spec = rank_.layout.parameters[piece.parameter].spec;
    slices.push_back({.name = "weights/" + spec.name,
                      .global_shape = spec.shape,
                      .range = piece.range,
                      .data = optimizer_.master(piece)});
    for (std::size_t i = 0; i < states.size(); ++i) {
      slices.push_back({.name = "optimizer/" + states[i] + "/" + spec.name,
                        .global_shape = spec.shape,
                        .range = piece.range,
                        .data = optimizer_.state(i, piece)});
    }
  }
  return slices;
}

void RankState::load(const io::Checkpoint& checkpoint) {
  stage_state_.load_weights(checkpoint);
  const std::vector<std::string> states =
      optim::Optimizer::state_names(plan_.config.optimizer.options);
  for (const optim::OwnedPiece& piece : optimizer_.pieces()) {
    const nn::ParameterSpec& spec = rank_.layout.parameters[piece.parameter].spec;
    for (std::size_t i = 0; i < states.size(); ++i) {
      checkpoint.read("optimizer/" + states[i] + "/" + spec.name, spec.shape, piece.range,
                      optimizer_.state(i, piece));
    }
  }
}

}  // namespace strata::train
