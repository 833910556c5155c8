#include "strata/train/rank_state.hpp"

#include <cstddef>

#include "strata/core/clock.hpp"
#include "strata/device/profile_range.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/train/checkpointing.hpp"

namespace strata::train {

RankState::RankState(ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank,
                     comm::Groups& groups)
    : StoredState(context, plan, rank, groups),
      groups_(groups),
      reducer_(context, groups.along(grid::Axis::kData), plan.lanes, rank.buckets,
               rank.reducer_sizes),
      norm_(context, rank.owned()),
      rule_(context, plan.config.optimizer.options, rank.layout, owned_, stage_state_.weights()),
      gather_(groups.along(grid::Axis::kData), rank.layout, rank.buckets, stage_state_.weights(),
              rank.reducer_sizes.node_ranks) {
  for (nn::Stage* const chunk : chunks()) {
    chunk->set_weight_source(&gather_);
  }
  if (const auto tie = tied_stages(plan)) {
    tie_.emplace(context, groups.along(grid::Axis::kPipeline), rank.layout, rank.buckets,
                 rank.coordinates.data, *tie, plan.config.numerics.dtype);
  }
}

comm::ExposedSeconds RankState::exposed_seconds() const {
  comm::ExposedSeconds exposed = stage_state_.exposed_seconds();
  exposed.of(grid::Axis::kData) += reducer_.exposed_seconds() + gather_.exposed_seconds();
  return exposed;
}

void RankState::reset_clock() {
  reducer_.reset_clock();
  gather_.reset_clock();
  stage_state_.reset_clock();
}

void RankState::assign(std::int64_t shift) {
  const std::int64_t place = (rank_.coordinates.data + shift) % plan_.grid.data;
  if (place == rank_.coordinates.data) {
    rotated_data_.reset();
    rotated_lanes_.reset();
    for (nn::Stage* const chunk : chunks()) {
      chunk->resume_graphs();
    }
  } else {
    rotated_data_.emplace(groups_.along(grid::Axis::kData), shift, context_.stream());
    rotated_lanes_.emplace(*groups_.lanes, shift, context_.stream());
    for (nn::Stage* const chunk : chunks()) {
      chunk->suspend_graphs();
    }
  }
  reducer_.assign(data_group());
  stage_state_.set_lanes(rotated_lanes_ ? *rotated_lanes_ : *groups_.lanes);
  norm_.assign(place);
  if (tie_) {
    tie_->assign(place);
  }
}

double RankState::combine_tied() {
  return tie_ ? tie_->combine(reducer_.sums()) : 0.0;
}

double RankState::update(double learning_rate, double gradient_scale, std::int64_t step) {
  const device::ProfileRange range("update");
  // In the order in which the next forward pass reads the weights.
  const std::vector<optim::Bucket>& buckets = rank_.buckets.buckets();
  for (std::size_t b = buckets.size(); b-- > 0;) {
    if (buckets[b].use != optim::Bucket::Use::kBorrowed) {
      rule_.update(b, reducer_.sums(), learning_rate, gradient_scale, step);
      gather_.begin(b);
    }
  }
  return gather_tied();
}

double RankState::publish_weights() {
  rule_.round_weights();
  const std::vector<optim::Bucket>& buckets = rank_.buckets.buckets();
  for (std::size_t b = buckets.size(); b-- > 0;) {
    if (buckets[b].use != optim::Bucket::Use::kBorrowed) {
      gather_.begin(b);
    }
  }
  return gather_tied();
}

double RankState::gather_tied() {
  const double waited = tie_ ? tie_->return_weights(stage_state_.weights()) : 0.0;
  const std::vector<optim::Bucket>& buckets = rank_.buckets.buckets();
  for (std::size_t b = buckets.size(); b-- > 0;) {
    if (buckets[b].use == optim::Bucket::Use::kBorrowed) {
      gather_.begin(b);
    }
  }
  return waited;
}

void RankState::drain() {
  gather_.finish();
  groups_.engine->drain();
}

void RankState::require_finite() {
  for (const optim::OwnedPiece& piece : owned_.pieces()) {
    if (!norm_.is_finite(owned_.master(piece))) {
      fail(ExitCode::kDiverged,
           "the run diverged: after the last update {} holds numbers that are not finite; no "
           "checkpoint is written, and the last good one is kept. Lower optimizer.learning_rate, "
           "set optimizer.clip_norm or lengthen schedule.warmup_steps",
           rank_.layout.parameters[piece.parameter].spec.name);
    }
  }
}

std::uint64_t RankState::sums_hash() {
  const std::int64_t place = data_group().rank();
  StreamingHash hash;
  for (const optim::Bucket& bucket : rank_.buckets.buckets()) {
    if (plan_.grid.data == 1) {
      break;
    }
    const grid::Range& slice = bucket.slices[static_cast<std::size_t>(place)];
    add_to(hash, reducer_.sums().flat_slice(bucket.elements.begin + slice.begin, slice.count()),
           context_.stream());
  }
  hash.update(std::as_bytes(norm_.blocks()));
  return hash.digest();
}

std::vector<io::TensorSlice> RankState::gradient_slices() {
  std::vector<io::TensorSlice> slices;
  for (const optim::OwnedPiece& piece : owned_.pieces()) {
    const nn::ParameterSpec& spec = spec_of(piece);
    if (spec.rule == nn::ParameterRule::kTrained) {
      add_slice(slices, "gradients/" + spec.name, piece,
                reducer_.sums().flat_slice(piece.arena_offset, piece.range.count()));
    }
  }
  return slices;
}

StepDigests RankState::digests(const std::string& prefix) {
  StepDigests digests;
  std::vector<io::TensorSlice> held = slices(prefix);
  const std::vector<io::TensorSlice> frozen = frozen_slices();
  held.insert(held.end(), frozen.begin(), frozen.end());
  for (const io::TensorSlice& slice : held) {
    const bool is_state = slice.name.find(plan::kStatePrefix) != std::string::npos;
    (is_state ? digests.state : digests.weights) += digest_of(slice, context_);
  }
  for (io::TensorSlice& slice : gradient_slices()) {
    slice.name = prefix + slice.name;
    digests.gradients += digest_of(slice, context_);
  }
  return digests;
}

}  // namespace strata::train
