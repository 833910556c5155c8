#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/comm/ordered_reduction.hpp"
#include "strata/nn/parameter.hpp"
#include "strata/nn/weight_source.hpp"
#include "strata/optim/buckets.hpp"

namespace strata::optim {

/// Gathers a stage's updated weights over the data group, bucket by bucket, while the next step's
/// first forward pass runs: each layer waits for its own buckets only.
class WeightGather final : public nn::WeightSource {
 public:
  /// `weights`: the stage's arena. `node_ranks`: as GradientReducer's. Group and plan outlive the
  /// object.
  WeightGather(comm::Communicator& data_group, const nn::ParameterLayout& layout,
               const BucketPlan& plan, const TensorView& weights, std::int64_t node_ranks = 1);

  /// Starts the all-gather of a bucket from the ranks' own slices; nothing for a bucket without
  /// weights on this stage. Communication: collective over the data group.
  void begin(std::size_t bucket);

  [[nodiscard]] bool waits_before(std::int64_t layer) const override;
  bool await(std::int64_t layer) override;
  /// Waits for all weights.
  void finish();

  /// Seconds since the last reset that the host waited.
  [[nodiscard]] double exposed_seconds() const { return exposed_seconds_; }
  void reset_clock() { exposed_seconds_ = 0.0; }

 private:
  struct Gather {
    comm::SliceGather slices;
    std::int64_t first_layer = 0;
  };

  comm::Communicator& data_group_;
  const BucketPlan& plan_;
  TensorView weights_;
  std::int64_t node_ranks_;
  /// For each bucket the first layer that reads its weights; a number above all where it has none.
  std::vector<std::int64_t> first_layers_;
  std::vector<Gather> in_flight_;
  double exposed_seconds_ = 0.0;
};

}  // namespace strata::optim
