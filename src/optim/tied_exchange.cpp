#include "strata/optim/tied_exchange.hpp"

#include <algorithm>
#include <array>
#include <deque>

#include "strata/core/clock.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/reduce.hpp"

namespace strata::optim {
namespace {

std::vector<grid::Range> own_slices(const BucketPlan& plan, Bucket::Use use,
                                    std::int64_t data_rank) {
  std::vector<grid::Range> slices;
  for (const Bucket& bucket : plan.buckets_for(use)) {
    const grid::Range& slice = bucket.slices[static_cast<std::size_t>(data_rank)];
    if (slice.count() > 0) {
      slices.push_back({bucket.elements.begin + slice.begin, bucket.elements.begin + slice.end});
    }
  }
  return slices;
}

/// Elements of the longest slice that any data rank owns.
std::int64_t longest_slice(const BucketPlan& plan, Bucket::Use use) {
  std::int64_t count = 0;
  for (const Bucket& bucket : plan.buckets_for(use)) {
    for (const grid::Range& slice : bucket.slices) {
      count = std::max(count, slice.count());
    }
  }
  return count;
}

TensorView elements_at(const TensorView& arena, const grid::Range& range) {
  return arena.flat_slice(range.begin, range.count());
}

double wait_for(std::vector<comm::Request>& requests) {
  const double start = now_seconds();
  for (comm::Request& request : requests) {
    request.wait();
  }
  return now_seconds() - start;
}

}  // namespace

nn::MemoryItem TiedExchange::memory(const BucketPlan& plan, std::int64_t pipeline_rank,
                                    const Stages& stages, DType weights_dtype) {
  const bool receives = stages.owner != stages.borrower && pipeline_rank == stages.owner;
  const std::int64_t elements = receives ? longest_slice(plan, Bucket::Use::kShared) : 0;
  return {"tied gradient receive buffers",
          kInFlight * elements * size_bytes(compute_dtype(weights_dtype))};
}

TiedExchange::TiedExchange(ops::Context& context, comm::Communicator& pipeline_group,
                           const nn::ParameterLayout& layout, const BucketPlan& plan,
                           std::int64_t data_rank, const Stages& stages, DType weights_dtype)
    : context_(context),
      group_(pipeline_group),
      stages_(stages),
      plan_(plan),
      receive_memory_(context.device(),
                      memory(plan, pipeline_group.rank(), stages, weights_dtype).bytes) {
  require((layout.shared.count() > 0) == owns() && (layout.borrowed.count() > 0) == borrows(),
          "stage {} shares {} elements and borrows {}, but stage {} owns and stage {} borrows them",
          group_.rank(), layout.shared.count(), layout.borrowed.count(), stages.owner,
          stages.borrower);
  const DType dtype = compute_dtype(weights_dtype);
  const std::int64_t slot = longest_slice(plan, Bucket::Use::kShared);
  for (std::int64_t s = 0; owns() && spans_stages() && s < kInFlight; ++s) {
    receive_slots_.push_back(
        receive_memory_.view(s * slot * size_bytes(dtype), Shape{slot}, dtype));
  }
  assign(data_rank);
}

void TiedExchange::assign(std::int64_t data_rank) {
  shared_ = own_slices(plan_, Bucket::Use::kShared, data_rank);
  borrowed_ = own_slices(plan_, Bucket::Use::kBorrowed, data_rank);
}

void TiedExchange::add(const TensorView& into, const TensorView& from) {
  const std::array<TensorView, 2> parts{into, from};
  const std::array<ReductionStep, 1> steps{{{.into = 0, .from = 1}}};
  ops::fold(context_, parts, steps);
}

double TiedExchange::combine(const TensorView& gradients) {
  if (!spans_stages()) {
    for (std::size_t i = 0; i < shared_.size(); ++i) {
      add(elements_at(gradients, shared_[i]), elements_at(gradients, borrowed_[i]));
    }
    return 0.0;
  }
  if (owns()) {
    return receive_and_add(gradients);
  }
  std::vector<comm::Request> sends;
  for (const grid::Range& slice : borrowed_) {
    sends.push_back(group_.send(elements_at(gradients, slice), stages_.owner, comm::Tag::kReduce));
  }
  return wait_for(sends);
}

double TiedExchange::receive_and_add(const TensorView& gradients) {
  struct Arrival {
    comm::Request request;
    TensorView received;
    std::size_t slice = 0;
  };
  double waited = 0.0;
  std::deque<Arrival> in_flight;
  std::size_t posted = 0;
  while (posted < shared_.size() || !in_flight.empty()) {
    if (posted < shared_.size() && in_flight.size() < receive_slots_.size()) {
      const TensorView slot =
          receive_slots_[posted % receive_slots_.size()].flat_slice(0, shared_[posted].count());
      in_flight.push_back({.request = group_.receive(slot, stages_.borrower, comm::Tag::kReduce),
                           .received = slot,
                           .slice = posted});
      ++posted;
      continue;
    }
    Arrival& oldest = in_flight.front();
    const double start = now_seconds();
    oldest.request.wait();
    waited += now_seconds() - start;
    add(elements_at(gradients, shared_[oldest.slice]), oldest.received);
    in_flight.pop_front();
  }
  return waited;
}

double TiedExchange::return_weights(const TensorView& weights) {
  std::vector<comm::Request> requests;
  if (spans_stages() && owns()) {
    for (const grid::Range& slice : shared_) {
      requests.push_back(
          group_.send(elements_at(weights, slice), stages_.borrower, comm::Tag::kGather));
    }
  }
  if (spans_stages() && borrows()) {
    for (const grid::Range& slice : borrowed_) {
      requests.push_back(
          group_.receive(elements_at(weights, slice), stages_.owner, comm::Tag::kGather));
    }
  }
  return wait_for(requests);
}

}  // namespace strata::optim
