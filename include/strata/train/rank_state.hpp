#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/comm/rotated_group.hpp"
#include "strata/core/hash.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/nn/stage.hpp"
#include "strata/optim/gradient_norm.hpp"
#include "strata/optim/gradient_reducer.hpp"
#include "strata/optim/optimizer.hpp"
#include "strata/optim/tied_exchange.hpp"
#include "strata/optim/weight_gather.hpp"
#include "strata/plan/plan.hpp"
#include "strata/train/test_fault.hpp"

namespace strata::train {

/// A sum over the slice's elements of hashes of the tensor's name, the element's index in the
/// tensor and its bits: the sum over slices does not depend on how a tensor is cut.
[[nodiscard]] std::uint64_t elements_hash(const io::TensorSlice& slice, device::Stream& stream);

/// The weights of one rank's chunks and the memory of its passes, which evaluation needs.
class StageState {
 public:
  /// Initialises the weights.
  StageState(ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank,
             comm::Groups& groups);
  StageState(const StageState&) = delete;
  StageState& operator=(const StageState&) = delete;

  [[nodiscard]] const TensorView& weights() const { return weights_; }
  /// Of frozen matrices.
  [[nodiscard]] const TensorView& frozen_weights() const { return frozen_weights_; }
  /// Of this rank, in layer order.
  [[nodiscard]] std::vector<nn::Stage*> chunks();
  /// Seconds since the last reset that passes spent in messages of the tensor and the lane group.
  [[nodiscard]] comm::ExposedSeconds exposed_seconds() const;
  void reset_clock();
  /// Computes other lanes from now on: those of this rank's number in `lanes`.
  void set_lanes(comm::Communicator& lanes) { lanes_.set_group(lanes); }

  /// Reads the weights, except those of the names `except`; in the checkpoint the names of the
  /// trained ones begin with `prefix`.
  /// Throws: Error(kCheckpoint) naming the first tensor that is missing or has another shape.
  void load_weights(const io::Checkpoint& checkpoint, const nn::NamePatterns& except = {},
                    const std::string& prefix = "");

 private:
  /// Calls use(placed parameter, its weights) for all that have weights of their own here.
  template <typename Use>
  void for_weights(const Use& use) const;

  const plan::RankPlan& rank_;
  device::Buffer weight_memory_;
  TensorView weights_;
  device::Buffer frozen_memory_;
  TensorView frozen_weights_;
  comm::ShardGroup shards_;
  comm::PartitionedGroup lanes_;
  std::vector<device::Buffer> pass_buffers_;
  std::deque<nn::Stage> chunks_;
};

/// The training state of one rank: its stage, its gradients, and its share of the optimizer state.
class RankState {
 public:
  /// Allocates the memory that the plan lists.
  RankState(ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank,
            comm::Groups& groups);
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;

  /// Of this rank, in layer order.
  [[nodiscard]] std::vector<nn::Stage*> chunks() { return stage_state_.chunks(); }
  /// nn::Stage::losses() of the last chunk.
  [[nodiscard]] std::vector<ops::LossSums> losses() { return chunks().back()->losses(); }
  /// Seconds since the last reset that passes, the gradients' reduction and the weights' gathers
  /// spent in messages.
  [[nodiscard]] comm::ExposedSeconds exposed_seconds() const;
  void reset_clock();
  [[nodiscard]] optim::GradientReducer& reducer() { return reducer_; }
  [[nodiscard]] optim::GradientNorm& norm() { return norm_; }

  /// Takes the place `shift` further in the data group, with its lanes and its slices of the
  /// reduced gradients, until assign(0). Weights and optimizer state stay. Pre: no message is in
  /// flight, and all ranks of the group take the same shift; plan::repeats_steps(), or shift = 0.
  void assign(std::int64_t shift);
  /// The data group in order of the places.
  [[nodiscard]] comm::Communicator& data_group() {
    return rotated_data_ ? *rotated_data_ : *groups_.data;
  }

  /// Sums the gradients of a tied table's two uses. Communication: over the pipeline group, where
  /// two stages use the table. Returns: seconds spent waiting for it.
  double combine_tied();
  /// Updates the own slices from the reduced gradients and starts to gather the weights, for which
  /// the next forward pass waits, layer by layer.
  /// Communication: an all-gather over the data group, bucket by bucket, and messages between the
  /// two stages of a tied table. Returns: seconds spent waiting for the latter.
  double update(double learning_rate, double gradient_scale, std::int64_t step);
  /// Rounds the master weights into the weights and starts to gather them, as update() does.
  /// Communication: as update()'s. Returns: as update().
  double publish_weights();
  /// Waits for the weights in flight, and drains the transport (comm::ProgressEngine): what reads
  /// all weights, or the device's memory from the host, calls it first.
  void drain();

  /// Throws: Error(kDiverged) where a weight that this rank owns is not finite. Overwrites the
  /// partial sums of the gradient norm.
  void require_finite();

  /// Hashes of this rank's copy of the weights, and of the optimizer state that it owns. Pre: no
  /// message is in flight.
  [[nodiscard]] std::uint64_t weights_hash() const;
  [[nodiscard]] std::uint64_t optimizer_hash() const;
  /// A hash of the own slices of the reduced gradients and of their squares; of the squares alone
  /// on one replica, which reduces its own sums. Pre: the squares are on the host (summarize_step).
  [[nodiscard]] std::uint64_t sums_hash();

  /// Damages one number, for tests: NaN in the reduced gradient, a flipped bit elsewhere. For
  /// kProduct a second call puts it right. Pre: no message is in flight.
  void damage(FaultPlace place);

  /// The master weights, of this rank's own slices.
  [[nodiscard]] const optim::Optimizer& optimizer() const { return optimizer_; }
  /// Copies master weights of this rank to host memory. Waits for the work that writes them.
  void copy_master(const optim::OwnedPiece& piece, const TensorView& into) const;
  [[nodiscard]] const TensorView& weights() const { return stage_state_.weights(); }
  /// All that update() changes.
  [[nodiscard]] std::vector<TensorView> trained_tensors() const;

  /// The weights and the optimizer state that this rank owns, for a checkpoint: copied into
  /// `memory`, or in place where `memory` is empty or frozen weights are in host memory. Waits for
  /// the copies. Pre: `memory` has plan::checkpoint_copy_bytes().
  [[nodiscard]] std::vector<io::TensorSlice> snapshot(const device::Buffer& memory) const;
  /// The weights that this rank owns and that no step changes, for a checkpoint, in place.
  [[nodiscard]] std::vector<io::TensorSlice> frozen_slices() const;
  /// The other weights and the optimizer state that this rank owns, in place; their names begin
  /// with `prefix`.
  [[nodiscard]] std::vector<io::TensorSlice> slices(const std::string& prefix = "") const;
  /// Elements of a trained parameter, or of another tensor of its shape, for a checkpoint; nothing
  /// where another tensor rank stands for it.
  [[nodiscard]] std::optional<io::TensorSlice> slice_of(const std::string& name,
                                                        const optim::OwnedPiece& piece,
                                                        const ConstTensorView& data) const;
  /// Reads elements of such a tensor. Throws: as load_weights().
  void read(const io::Checkpoint& checkpoint, const std::string& name,
            const optim::OwnedPiece& piece, const TensorView& into) const;
  [[nodiscard]] const nn::ParameterSpec& spec_of(const optim::OwnedPiece& piece) const {
    return rank_.layout.parameters[piece.parameter].spec;
  }
  /// The reduced gradients of trained parameters that this rank owns, in place: names as in
  /// "gradients/dense1.weight".
  [[nodiscard]] std::vector<io::TensorSlice> gradient_slices();
  /// Reads the weights, except those of the names `except`; in the checkpoint the names of the
  /// trained ones begin with `prefix`.
  /// Throws: Error(kCheckpoint) naming the first tensor that is missing or has another shape.
  void load_weights(const io::Checkpoint& checkpoint, const nn::NamePatterns& except = {},
                    const std::string& prefix = "");
  /// Reads the own slices of the optimizer state. Throws: as load_weights().
  void load_state(const io::Checkpoint& checkpoint, const std::string& prefix = "");

 private:
  /// Returns the tied weights and starts to gather them. Returns: as update().
  double gather_tied();
  /// Whether the optimizer has master copies of the weights.
  [[nodiscard]] bool has_masters() const;

  /// Whether this rank stands for a parameter, of which tensor ranks may have copies.
  [[nodiscard]] bool represents(const nn::PlacedParameter& placed) const;
  /// What this rank owns, in device memory.
  [[nodiscard]] std::vector<io::TensorSlice> slices_of(const optim::Optimizer& owner,
                                                       const nn::ParameterLayout& layout,
                                                       const std::string& prefix) const;
  /// Calls use(optimizer, piece, placed parameter) for what this rank owns.
  template <typename Use>
  void for_owned(const Use& use) const;

  ops::Context& context_;
  const plan::Plan& plan_;
  const plan::RankPlan& rank_;
  comm::Groups& groups_;
  StageState stage_state_;
  optim::GradientReducer reducer_;
  optim::Optimizer optimizer_;
  /// The master weights of frozen matrices, which no step updates; in host memory where they are
  /// copies.
  ops::Context host_;
  optim::Optimizer frozen_masters_;
  std::optional<optim::TiedExchange> tie_;
  optim::GradientNorm norm_;
  optim::WeightGather gather_;
  std::optional<comm::RotatedGroup> rotated_data_;
  std::optional<comm::RotatedGroup> rotated_lanes_;
};

/// Copies the data of slices to `memory`, one after the other from `offset_bytes` on, and points
/// the slices there. Waits for the copies. Returns: the offset after them.
std::int64_t copy_data(std::span<io::TensorSlice> slices, const device::Buffer& memory,
                       std::int64_t offset_bytes, device::Stream& stream);

/// Hashes a tensor in any memory. Waits for the work on `stream`.
void add_to(StreamingHash& hash, const ConstTensorView& tensor, device::Stream& stream);

}  // namespace strata::train
