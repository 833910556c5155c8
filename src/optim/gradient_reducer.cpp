#include "strata/optim/gradient_reducer.hpp"

#include <algorithm>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"

namespace strata::optim {
namespace {

/// Elements of the receive buffer for one bucket, of the rank in `ranks` with the most.
std::int64_t receive_elements(const grid::Assignment& lanes, const grid::Range& ranks,
                              const BucketPlan& plan, const GradientReducer::Sizes& sizes) {
  if (sizes.summation == comm::Summation::kLibrary) {
    return 0;
  }
  const std::vector<std::int64_t> parts = comm::received_parts(lanes, sizes.node_ranks);
  return *std::max_element(parts.begin() + ranks.begin, parts.begin() + ranks.end) *
         plan.largest_slice();
}

/// The reduction of a rank's own lanes.
grid::RunningReduction fold_of(const grid::Assignment& lanes, std::int64_t data_rank,
                               const GradientReducer::Sizes& sizes) {
  if (sizes.summation == comm::Summation::kLibrary) {
    return grid::running_reduction(grid::SumTree(1).nodes_within({0, 1}));
  }
  const std::vector<grid::Range> nodes = lanes.nodes_of(data_rank);
  return sizes.joins_lanes ? grid::joint_reduction(nodes) : grid::running_reduction(nodes);
}

}  // namespace

std::vector<nn::MemoryItem> GradientReducer::memory(const grid::Assignment& lanes,
                                                    std::int64_t data_rank, const BucketPlan& plan,
                                                    const Sizes& sizes) {
  const grid::Range ranks = sizes.reach == Reach::kAnyLanes ? grid::Range{0, lanes.ranks()}
                                                            : grid::Range{data_rank, data_rank + 1};
  std::int64_t accumulators = 0;
  const std::int64_t received = receive_elements(lanes, ranks, plan, sizes);
  for (std::int64_t r = ranks.begin; r < ranks.end; ++r) {
    accumulators = std::max(accumulators, fold_of(lanes, r, sizes).accumulators);
  }
  const std::int64_t element_bytes = size_bytes(compute_dtype(sizes.dtype));
  return {{"gradients", accumulators * sizes.elements * element_bytes},
          {"gradient receive buffers", sizes.in_flight * received * element_bytes}};
}

GradientReducer::GradientReducer(ops::Context& context, comm::Communicator& data_group,
                                 const grid::Assignment& lanes, const BucketPlan& plan,
                                 const Sizes& sizes)
    : context_(context),
      data_group_(&data_group),
      lanes_(lanes),
      reduction_(data_group, lanes, sizes.node_ranks),
      plan_(plan),
      sizes_(sizes),
      microbatches_per_lane_(sizes.microbatches_per_lane) {
  if (sizes.summation == comm::Summation::kLibrary) {
    microbatches_per_lane_ *= lanes.rounds();
  }
  const std::vector<nn::MemoryItem> items = memory(lanes, data_group.rank(), plan, sizes);
  gradient_memory_ = device::Buffer(context.device(), items[0].bytes);
  receive_memory_ = device::Buffer(context.device(), items[1].bytes);
  assign(data_group);
}

void GradientReducer::assign(comm::Communicator& data_group) {
  data_group_ = &data_group;
  reduction_ = comm::OrderedReduction(data_group, lanes_, sizes_.node_ranks);
  fold_ = fold_of(lanes_, data_group.rank(), sizes_);
  const DType dtype = compute_dtype(sizes_.dtype);
  const std::int64_t element_bytes = size_bytes(dtype);
  accumulators_.clear();
  for (std::int64_t a = 0; a < fold_.accumulators; ++a) {
    accumulators_.push_back(
        gradient_memory_.view(a * sizes_.elements * element_bytes, Shape{sizes_.elements}, dtype));
  }
  const std::int64_t rank = data_group.rank();
  const std::int64_t slot_elements = receive_elements(lanes_, {rank, rank + 1}, plan_, sizes_);
  receive_slots_.clear();
  for (std::int64_t s = 0; s < sizes_.in_flight; ++s) {
    receive_slots_.push_back(
        receive_memory_.view(s * slot_elements * element_bytes, Shape{slot_elements}, dtype));
  }
}

nn::GradientSink::Target GradientReducer::begin_microbatch(std::int64_t m,
                                                           const grid::Range& layers) {
  next_bucket_ = 0;
  while (next_bucket_ < plan_.buckets().size() &&
         plan_.buckets()[next_bucket_].ready_layer >= layers.end) {
    ++next_bucket_;
  }
  const auto lane = static_cast<std::size_t>(m / microbatches_per_lane_);
  return {.gradients = accumulators_[static_cast<std::size_t>(fold_.accumulator[lane])],
          .accumulate = m % microbatches_per_lane_ == 0 ? ops::Accumulate::kOverwrite
                                                        : ops::Accumulate::kAdd};
}

bool GradientReducer::acts_on(std::int64_t m, std::int64_t layer) const {
  const std::vector<Bucket>& buckets = plan_.buckets();
  if ((m + 1) % microbatches_per_lane_ != 0 || next_bucket_ >= buckets.size() ||
      buckets[next_bucket_].ready_layer < layer) {
    return false;
  }
  const auto lane = static_cast<std::size_t>(m / microbatches_per_lane_);
  return lane + 1 == fold_.accumulator.size() || !fold_.after[lane].empty();
}

void GradientReducer::layer_done(std::int64_t m, std::int64_t layer) {
  if (!acts_on(m, layer)) {
    return;
  }
  const auto lane = static_cast<std::size_t>(m / microbatches_per_lane_);
  const bool last_lane = lane + 1 == fold_.accumulator.size();
  std::vector<ReductionStep> steps;
  for (const ReductionStep& step : fold_.after[lane]) {
    steps.push_back({step.into, step.from});
  }
  const std::vector<Bucket>& buckets = plan_.buckets();
  for (; next_bucket_ < buckets.size() && buckets[next_bucket_].ready_layer >= layer;
       ++next_bucket_) {
    if (!steps.empty()) {
      const grid::Range& elements = buckets[next_bucket_].elements;
      std::vector<TensorView> parts;
      for (const TensorView& accumulator : accumulators_) {
        parts.push_back(accumulator.flat_slice(elements.begin, elements.count()));
      }
      ops::fold(context_, parts, steps);
    }
    if (last_lane) {
      start_bucket(next_bucket_);
    }
  }
}

void GradientReducer::start_bucket(std::size_t bucket) {
  if (static_cast<std::int64_t>(in_flight_.size()) == sizes_.in_flight) {
    finish_oldest();
  }
  const std::vector<grid::Range>& slices = plan_.buckets()[bucket].slices;
  const grid::Range& elements = plan_.buckets()[bucket].elements;
  comm::OrderedReduction::Pending pending;
  bool on_stream = false;
  if (sizes_.summation == comm::Summation::kLibrary) {
    pending.messages =
        data_group_->reduce_scatter(sums().flat_slice(elements.begin, elements.count()), slices);
    on_stream = pending.messages.follow([](device::Stream&) {});
  } else {
    std::vector<TensorView> partials;
    for (std::int64_t k = 0; k < reduction_.own_parts(); ++k) {
      partials.push_back(
          accumulators_[static_cast<std::size_t>(k)].flat_slice(elements.begin, elements.count()));
    }
    if (sums_observer_) {
      sums_observer_(plan_.buckets()[bucket], partials);
    }
    pending = reduction_.start(
        partials, slices, receive_slots_[started_++ % static_cast<std::size_t>(sizes_.in_flight)]);
    on_stream = reduction_.fold_behind(context_, pending);
  }
  if (on_stream) {
    on_stream_ = std::move(pending.messages);
  } else {
    // The same on all ranks: while the next bucket's sums are added inside nodes, those of the
    // buckets before cross them.
    for (comm::OrderedReduction::Pending& before : in_flight_) {
      cross_nodes(before);
    }
    in_flight_.push_back(std::move(pending));
  }
}

void GradientReducer::cross_nodes(comm::OrderedReduction::Pending& pending) {
  if (pending.is_inside) {
    wait_for(pending.messages);
    reduction_.cross_nodes(context_, pending);
  }
}

void GradientReducer::wait_for(comm::Request& messages) {
  const double start = now_seconds();
  messages.wait();
  exposed_seconds_ += now_seconds() - start;
}

void GradientReducer::finish_oldest() {
  cross_nodes(in_flight_.front());
  wait_for(in_flight_.front().messages);
  if (sizes_.summation == comm::Summation::kInvariant) {
    reduction_.fold(context_, in_flight_.front());
  }
  in_flight_.pop_front();
}

void GradientReducer::finish() {
  for (comm::OrderedReduction::Pending& pending : in_flight_) {
    cross_nodes(pending);
  }
  while (!in_flight_.empty()) {
    finish_oldest();
  }
  wait_for(on_stream_);
}

}  // namespace strata::optim
