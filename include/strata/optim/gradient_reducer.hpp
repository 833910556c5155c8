#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "strata/comm/ordered_reduction.hpp"
#include "strata/comm/summation.hpp"
#include "strata/device/buffer.hpp"
#include "strata/nn/gradient_sink.hpp"
#include "strata/nn/stage.hpp"
#include "strata/optim/buckets.hpp"

namespace strata::optim {

/// Reduces a stage's gradients: microbatches of a lane in order, then lanes by the sum tree, first
/// this rank's lanes, then over the data group, bucket by bucket, overlapped with the backward pass
/// (design law 1). With comm::Summation::kLibrary all lanes of a rank are one. Messages with a
/// stream of their own are summed there: the compute stream waits for them in finish() only.
class GradientReducer final : public nn::GradientSink {
 public:
  /// The lanes that a rank may compute: those of its place in the data group, or those of any.
  enum class Reach { kOwnLanes, kAnyLanes };

  struct Sizes {
    std::int64_t elements = 0;
    std::int64_t microbatches_per_lane = 1;
    /// The weights' dtype; gradients are in its compute_dtype.
    DType dtype = DType::kFloat32;
    comm::Summation summation = comm::Summation::kInvariant;
    /// Whether the own lanes run concurrently: the k-th microbatch of each before the next of any.
    bool joins_lanes = false;
    /// What memory is planned for.
    Reach reach = Reach::kOwnLanes;
    /// Receive buffers, and buckets in flight at once. Messages with a stream of their own use one
    /// buffer after the other in the order of that stream, in any number.
    std::int64_t in_flight = 4;
    /// Consecutive ranks of the data group whose sums are added first (comm::OrderedReduction).
    std::int64_t node_ranks = 1;
  };

  GradientReducer(ops::Context& context, comm::Communicator& data_group,
                  const grid::Assignment& lanes, const BucketPlan& plan, const Sizes& sizes);

  /// The bytes that a GradientReducer of this rank allocates.
  [[nodiscard]] static std::vector<nn::MemoryItem> memory(const grid::Assignment& lanes,
                                                          std::int64_t data_rank,
                                                          const BucketPlan& plan,
                                                          const Sizes& sizes);

  /// Switches to another data group; this rank's index in it selects its lanes and slices.
  /// Pre: as many ranks as before; Reach::kAnyLanes, or the same number.
  void assign(comm::Communicator& data_group);

  /// Called with this rank's sums of a bucket, one for each tree node that its lanes complete,
  /// before they are sent. An empty observer ends the calls.
  using SumsObserver =
      std::function<void(const Bucket& bucket, std::span<const TensorView> partials)>;
  void observe_sums(SumsObserver observer) { sums_observer_ = std::move(observer); }

  [[nodiscard]] Target begin_microbatch(std::int64_t m, const grid::Range& layers) override;
  [[nodiscard]] bool acts_on(std::int64_t m, std::int64_t layer) const override;
  void layer_done(std::int64_t m, std::int64_t layer) override;
  void finish() override;

  /// After finish(): the arena whose own slices hold the sums over all lanes.
  [[nodiscard]] TensorView sums() const { return accumulators_.front(); }
  /// Seconds since the last reset that the step waited for messages.
  [[nodiscard]] double exposed_seconds() const { return exposed_seconds_; }
  void reset_clock() { exposed_seconds_ = 0.0; }

 private:
  void start_bucket(std::size_t bucket);
  void cross_nodes(comm::OrderedReduction::Pending& pending);
  void finish_oldest();
  void wait_for(comm::Request& messages);

  ops::Context& context_;
  comm::Communicator* data_group_;
  grid::Assignment lanes_;
  comm::OrderedReduction reduction_;
  const BucketPlan& plan_;
  Sizes sizes_;
  std::int64_t microbatches_per_lane_ = 1;
  grid::RunningReduction fold_;
  device::Buffer gradient_memory_;
  device::Buffer receive_memory_;
  std::vector<TensorView> accumulators_;
  std::vector<TensorView> receive_slots_;
  std::deque<comm::OrderedReduction::Pending> in_flight_;
  /// The last bucket's messages on a stream of their own, and with them those before.
  comm::Request on_stream_;
  std::size_t next_bucket_ = 0;
  std::size_t started_ = 0;
  double exposed_seconds_ = 0.0;
  SumsObserver sums_observer_;
};

}  // namespace strata::optim
