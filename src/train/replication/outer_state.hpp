#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/comm/communicator.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/optim/outer_optimizer.hpp"
#include "strata/train/rank_state.hpp"

// The outer optimizer's state as tensors of a checkpoint.
namespace strata::train {

/// What a rank sums of the outer weights, the momentum and the sums' packing errors, in place.
[[nodiscard]] std::vector<io::TensorSlice> outer_slices(const RankState& state,
                                                        const optim::OuterOptimizer& outer);
/// Reads them for all that a rank owns. Throws: as RankState::load_weights().
void load_outer(const io::Checkpoint& checkpoint, const RankState& state,
                optim::OuterOptimizer& outer);

/// A hash of the tensors that the slices of all ranks hold once, the same on every grid.
/// Communication: collective over the world.
[[nodiscard]] std::string tensors_hash(comm::Communicator& world,
                                       const std::vector<io::TensorSlice>& slices,
                                       device::Stream& stream);
/// Of outer_slices() and frozen matrices. `islands_rank`: this rank's islands coordinate.
[[nodiscard]] std::string start_hash(comm::Communicator& world, const RankState& state,
                                     const optim::OuterOptimizer& outer, device::Stream& stream,
                                     std::int64_t islands_rank);

}  // namespace strata::train
