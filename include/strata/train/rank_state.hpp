#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strata/comm/rotated_group.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/optim/gradient_norm.hpp"
#include "strata/optim/gradient_reducer.hpp"
#include "strata/optim/tied_exchange.hpp"
#include "strata/optim/weight_gather.hpp"
#include "strata/train/receipts.hpp"
#include "strata/train/stored_state.hpp"

namespace strata::train {

/// The training state of one rank: its stage, its gradients, and its share of the optimizer state.
class RankState : public StoredState {
 public:
  /// Allocates the memory that the plan lists.
  RankState(ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank,
            comm::Groups& groups);
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;

  /// nn::Stage::losses() of the last chunk.
  [[nodiscard]] std::vector<nn::MicrobatchLoss> losses() { return chunks().back()->losses(); }
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
    return rotated_data_ ? *rotated_data_ : groups_.along(grid::Axis::kData);
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
  /// block sums of the gradient norm.
  void require_finite();

  /// A hash of the own slices of the reduced gradients and of their squares; of the squares alone
  /// on one replica, which reduces its own sums. Pre: the squares are on the host (summarize_step).
  [[nodiscard]] std::uint64_t sums_hash();

  /// The reduced gradients of trained parameters that this rank owns, in place: names as in
  /// "gradients/dense1.weight".
  [[nodiscard]] std::vector<io::TensorSlice> gradient_slices();

  /// Digests of this rank's slices of weights, optimizer state and reduced gradients; names begin
  /// with `prefix`. Pre: the gradients are reduced. Waits for the work that writes them.
  [[nodiscard]] StepDigests digests(const std::string& prefix);

 private:
  /// Returns the tied weights and starts to gather them. Returns: as update().
  double gather_tied();
  comm::Groups& groups_;
  optim::GradientReducer reducer_;
  std::optional<optim::TiedExchange> tie_;
  optim::GradientNorm norm_;
  optim::UpdateRule rule_;
  optim::WeightGather gather_;
  std::optional<comm::RotatedGroup> rotated_data_;
  std::optional<comm::RotatedGroup> rotated_lanes_;
};

}  // namespace strata::train
