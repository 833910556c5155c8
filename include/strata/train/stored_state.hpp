#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strata/comm/groups.hpp"
#include "strata/core/hash.hpp"
#include "strata/device/buffer.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/nn/stage.hpp"
#include "strata/optim/optimizer.hpp"
#include "strata/plan/plan.hpp"

namespace strata::train {

/// The weights of one rank's chunks and the memory of its passes, which evaluation needs.
class StageState {
 public:
  /// The weights have no values yet: initialise() or load_weights() gives them some.
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
  /// Switches to other lanes: this rank's index in `lanes` selects them.
  void set_lanes(comm::Communicator& lanes) { lanes_.set_group(lanes); }

  /// Gives the weights the values that a run begins with.
  void initialise(std::uint64_t seed);
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

/// What one rank has of a checkpoint: its stage with the weights, their master copies, and its
/// share of the optimizer state.
class StoredState {
 public:
  /// The weights have no values yet; the optimizer state is zero.
  StoredState(ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank,
              comm::Groups& groups);
  StoredState(const StoredState&) = delete;
  StoredState& operator=(const StoredState&) = delete;

  /// Of this rank, in layer order.
  [[nodiscard]] std::vector<nn::Stage*> chunks() { return stage_state_.chunks(); }

  /// The master weights and the optimizer state of trained parameters, of this rank's own slices.
  [[nodiscard]] const optim::OwnedTensors& owned() const { return owned_; }
  /// Copies master weights of this rank to host memory. Waits for the work that writes them.
  void copy_master(const optim::OwnedPiece& piece, const TensorView& into) const;
  [[nodiscard]] const TensorView& weights() const { return stage_state_.weights(); }
  /// All that update() changes.
  [[nodiscard]] std::vector<TensorView> trained_tensors() const;

  /// Hashes of this rank's copy of the weights, and of the optimizer state that it owns. Pre: no
  /// message is in flight.
  [[nodiscard]] std::uint64_t weights_hash() const;
  [[nodiscard]] std::uint64_t optimizer_hash() const;
  /// The weights and the optimizer state that this rank owns, for a checkpoint: copied into
  /// `memory`, or in place where `memory` is empty or frozen weights are in host memory. Waits for
  /// the copies. Pre: `memory` has plan::checkpoint_copy_bytes().
  [[nodiscard]] std::vector<io::TensorSlice> snapshot(const device::Buffer& memory) const;
  /// The weights that this rank owns and that no step changes, for a checkpoint, in place.
  [[nodiscard]] std::vector<io::TensorSlice> frozen_slices() const;
  /// The other weights and the optimizer state that this rank owns, in place; their names begin
  /// with `prefix`.
  [[nodiscard]] std::vector<io::TensorSlice> slices(const std::string& prefix = "") const;
  /// Adds elements of a trained parameter, or of another tensor of its shape, for a checkpoint; not
  /// where another tensor rank stands for it.
  void add_slice(std::vector<io::TensorSlice>& slices, const std::string& name,
                 const optim::OwnedPiece& piece, const ConstTensorView& data) const;
  /// Adds frozen_slices(): copied into `memory` from `offset_bytes` on, or in place where they are
  /// in host memory, which does not change while it is written. Waits for the copies.
  void add_frozen(std::vector<io::TensorSlice>& slices, const device::Buffer& memory,
                  std::int64_t offset_bytes) const;
  /// Reads elements of such a tensor. Throws: as load_weights().
  void read(const io::Checkpoint& checkpoint, const std::string& name,
            const optim::OwnedPiece& piece, const TensorView& into) const;
  [[nodiscard]] const nn::ParameterSpec& spec_of(const optim::OwnedPiece& piece) const {
    return rank_.layout.parameters[piece.parameter].spec;
  }
  /// Gives the weights and their master copies the values that a run begins with.
  void initialise();
  /// Reads the weights, except those of the names `except`; in the checkpoint the names of the
  /// trained ones begin with `prefix`.
  /// Throws: Error(kCheckpoint) naming the first tensor that is missing or has another shape.
  void load_weights(const io::Checkpoint& checkpoint, const nn::NamePatterns& except = {},
                    const std::string& prefix = "");
  /// Reads the own slices of the optimizer state. Throws: as load_weights().
  void load_state(const io::Checkpoint& checkpoint, const std::string& prefix = "");

 protected:
  ops::Context& context_;
  const plan::Plan& plan_;
  const plan::RankPlan& rank_;
  StageState stage_state_;
  optim::OwnedTensors owned_;

 private:
  /// Whether the master weights are copies.
  [[nodiscard]] bool has_masters() const;
  /// Adds a slice unless another tensor rank has a copy and writes it.
  void add_placed(std::vector<io::TensorSlice>& slices, const std::string& name,
                  const nn::PlacedParameter& placed, const optim::OwnedPiece& piece,
                  const ConstTensorView& data) const;
  /// What this rank owns, in device memory.
  [[nodiscard]] std::vector<io::TensorSlice> slices_of(const optim::OwnedTensors& owned,
                                                       const nn::ParameterLayout& layout,
                                                       const std::string& prefix) const;
  /// Calls use(tensors, piece, placed parameter) for what this rank owns.
  template <typename Use>
  void for_owned(const Use& use) const;

  /// The master weights of frozen matrices, which no step updates; in host memory where they are
  /// copies.
  optim::OwnedTensors frozen_masters_;
};

/// Hashes a tensor in any memory. Waits for the work on `stream`.
void add_to(StreamingHash& hash, const ConstTensorView& tensor, device::Stream& stream);

/// Copies the data of slices to `memory`, one after the other from `offset_bytes` on, and points
/// the slices there. Waits for the copies. Returns: the offset after them.
std::int64_t copy_data(std::span<io::TensorSlice> slices, const device::Buffer& memory,
                       std::int64_t offset_bytes, device::Stream& stream);

}  // namespace strata::train
