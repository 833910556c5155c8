#include "strata/optim/weight_gather.hpp"

#include <algorithm>
#include <limits>

#include "strata/core/clock.hpp"

namespace strata::optim {
namespace {

constexpr std::int64_t kNoLayer = std::numeric_limits<std::int64_t>::max();

std::int64_t first_layer_of(const Bucket& bucket, const nn::ParameterLayout& layout) {
  std::int64_t first = kNoLayer;
  for (const nn::PlacedParameter& placed : layout.parameters) {
    // A parameter that is borrowed from this very stage uses the owner's weights.
    const grid::Range read = placed.offset < layout.weight_elements
                                 ? grid::Range{placed.offset, placed.offset + placed.shape.count()}
                                 : layout.shared;
    if (read.begin < bucket.elements.end && read.end > bucket.elements.begin) {
      first = std::min(first, placed.spec.layer);
    }
  }
  return first;
}

}  // namespace

WeightGather::WeightGather(comm::Communicator& data_group, const nn::ParameterLayout& layout,
                           const BucketPlan& plan, const TensorView& weights,
                           std::int64_t node_ranks)
    : data_group_(data_group), plan_(plan), weights_(weights), node_ranks_(node_ranks) {
  for (const Bucket& bucket : plan.buckets()) {
    first_layers_.push_back(first_layer_of(bucket, layout));
  }
}

void WeightGather::begin(std::size_t bucket) {
  if (data_group_.size() == 1 || first_layers_[bucket] == kNoLayer) {
    return;
  }
  const Bucket& of = plan_.buckets()[bucket];
  in_flight_.push_back(
      {.slices = {data_group_, weights_.flat_slice(of.elements.begin, of.elements.count()),
                  of.slices, node_ranks_},
       .first_layer = first_layers_[bucket]});
}

bool WeightGather::waits_before(std::int64_t layer) const {
  return data_group_.size() > 1 && std::ranges::count(first_layers_, layer) > 0;
}

bool WeightGather::await(std::int64_t layer) {
  if (in_flight_.empty()) {
    return false;
  }
  const double start = now_seconds();
  const auto is_needed = [layer](const Gather& gather) { return gather.first_layer <= layer; };
  for (Gather& gather : in_flight_) {
    if (is_needed(gather)) {
      gather.slices.enter_nodes();
    }
  }
  for (Gather& gather : in_flight_) {
    if (is_needed(gather)) {
      gather.slices.wait();
    }
  }
  const std::size_t done = std::erase_if(in_flight_, is_needed);
  exposed_seconds_ += now_seconds() - start;
  return done > 0;
}

void WeightGather::finish() {
  static_cast<void>(await(kNoLayer));
}

}  // namespace strata::optim
