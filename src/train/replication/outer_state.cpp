#include "replication/outer_state.hpp"

#include "strata/comm/values.hpp"
#include "strata/core/hash.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/train/receipts.hpp"

namespace strata::train {
namespace {

/// Calls use(name, tensor) for the outer optimizer's tensors of a piece.
template <typename Use>
void for_tensors(const RankState& state, const optim::OuterOptimizer& outer,
                 const optim::OuterOptimizer::Piece& piece, const Use& use) {
  const nn::ParameterSpec& spec = state.spec_of(piece.owned);
  use(plan::weight_name(spec), outer.weights(piece));
  if (outer.has_momentum()) {
    use(plan::outer_name(plan::kOuterPrefix, plan::kOuterMomentum, spec), outer.momentum(piece));
  }
  if (outer.rounds()) {
    use(plan::outer_name(plan::kOuterPrefix, plan::kPackingError, spec), outer.sum_error(piece));
  }
}

}  // namespace

std::vector<io::TensorSlice> outer_slices(const RankState& state,
                                          const optim::OuterOptimizer& outer) {
  std::vector<io::TensorSlice> slices;
  for (const optim::OuterOptimizer::Piece& piece : outer.summed_pieces()) {
    for_tensors(state, outer, piece, [&](const std::string& name, const TensorView& tensor) {
      state.add_slice(slices, name, piece.owned, tensor);
    });
  }
  return slices;
}

void load_outer(const io::Checkpoint& checkpoint, const RankState& state,
                optim::OuterOptimizer& outer) {
  for (const optim::OuterOptimizer::Piece& piece : outer.pieces()) {
    for_tensors(state, outer, piece, [&](const std::string& name, const TensorView& tensor) {
      state.read(checkpoint, name, piece.owned, tensor);
    });
  }
}

std::string tensors_hash(comm::Communicator& world, const std::vector<io::TensorSlice>& slices,
                         device::Stream& stream) {
  Digest sum;
  for (const Digest& digest : comm::gathered(world, digest_of(slices, stream))) {
    sum += digest;
  }
  return digest_text(sum);
}

std::string start_hash(comm::Communicator& world, const RankState& state,
                       const optim::OuterOptimizer& outer, device::Stream& stream,
                       std::int64_t islands_rank) {
  std::vector<io::TensorSlice> slices = outer_slices(state, outer);
  if (islands_rank == 0) {  // all islands have the same
    const std::vector<io::TensorSlice> frozen = state.frozen_slices();
    slices.insert(slices.end(), frozen.begin(), frozen.end());
  }
  return tensors_hash(world, slices, stream);
}

}  // namespace strata::train
