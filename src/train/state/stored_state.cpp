#include "strata/train/stored_state.hpp"

#include <algorithm>

#include "strata/device/host_copy.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/stop_signal.hpp"

namespace strata::train {
namespace {

/// The part of the whole tensor that a placed slice is.
io::ShardSlice shard_of(const nn::PlacedParameter& placed) {
  if (!placed.is_slice()) {
    return {};
  }
  return {.dimension = placed.spec.split,
          .first = placed.first_index,
          .count = placed.shape[static_cast<std::size_t>(placed.spec.split)]};
}

/// The dtype of a checkpoint's tensor; `otherwise` where it has none of this name.
DType stored_dtype(const io::Checkpoint& checkpoint, const std::string& name, DType otherwise) {
  const io::TensorInfo* const found = checkpoint.find(name);
  return found != nullptr ? found->dtype : otherwise;
}

/// The name of a parameter's weights; all parts have the same frozen matrices.
std::string stored_name(const nn::ParameterSpec& spec, const std::string& prefix) {
  return plan::weight_name(spec, nn::has_gradient(spec) ? prefix : "");
}

/// Reads elements of a placed slice, from its element `begin` on, out of the checkpoint's tensor
/// `name` into memory of any device. Checkpoints hold master weights; `into` may have another
/// dtype, to which they are converted.
void read_slice(const io::Checkpoint& checkpoint, const std::string& name,
                const nn::PlacedParameter& placed, std::int64_t begin, const TensorView& into) {
  constexpr std::int64_t kMostElements = 1 << 20;
  const nn::ParameterSpec& spec = placed.spec;
  const DType stored = stored_dtype(checkpoint, name, compute_dtype(into.dtype()));
  const auto read = [&](std::int64_t first, const TensorView& tensor) {
    checkpoint.read(name, spec.shape, shard_of(placed),
                    {begin + first, begin + first + tensor.count()}, tensor);
  };
  device::write_from_host(into, [&](std::int64_t first, const TensorView& piece) {
    if (stored == piece.dtype()) {
      read(first, piece);
      return;
    }
    ops::Context context(1);
    const std::int64_t most = std::min(kMostElements, piece.count());
    const device::Buffer memory(device::Device::cpu(), most * size_bytes(stored));
    for (std::int64_t at = 0; at < piece.count(); at += most) {
      const std::int64_t count = std::min(most, piece.count() - at);
      const TensorView masters = memory.view(0, Shape{count}, stored);
      read(first + at, masters);
      ops::convert(context, masters, piece.flat_slice(at, count));
    }
  });
}

}  // namespace

void add_to(StreamingHash& hash, const ConstTensorView& tensor, device::Stream& stream) {
  constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;
  const std::int64_t most = kPieceBytes / size_bytes(tensor.dtype());
  for (std::int64_t first = 0; first < tensor.count(); first += most) {
    const std::int64_t count = std::min(most, tensor.count() - first);
    const device::HostView piece(tensor.flat_slice(first, count), stream);
    hash.update({piece.view().raw(), static_cast<std::size_t>(piece.view().bytes())});
  }
}

std::int64_t copy_data(std::span<io::TensorSlice> slices, const device::Buffer& memory,
                       std::int64_t offset_bytes, device::Stream& stream) {
  for (io::TensorSlice& slice : slices) {
    const TensorView copy = memory.view(offset_bytes, slice.data.shape(), slice.data.dtype());
    device::copy_tensor(slice.data, copy, stream);
    offset_bytes += copy.bytes();
    slice.data = copy;
  }
  stream.synchronize();
  return offset_bytes;
}

StageState::StageState(ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank,
                       comm::Groups& groups)
    : rank_(rank),
      weight_memory_(context.device(),
                     rank.layout.weight_elements * size_bytes(plan.config.numerics.dtype)),
      weights_(
          weight_memory_.view(0, Shape{rank.layout.weight_elements}, plan.config.numerics.dtype)),
      frozen_memory_(context.device(),
                     rank.frozen.weight_elements * size_bytes(plan.config.numerics.dtype)),
      frozen_weights_(
          frozen_memory_.view(0, Shape{rank.frozen.weight_elements}, plan.config.numerics.dtype)),
      shards_(groups.along(grid::Axis::kTensor), *groups.engine, plan.config.numerics.shards,
              plan.config.numerics.mode),
      lanes_(*groups.lanes, *groups.engine, plan.lanes.tree().leaves()),
      pass_buffers_(nn::Stage::pass_buffers(context.device(), *plan.model, rank.chunks)) {
  for (const nn::StageSpec& chunk : rank.chunks) {
    chunks_.emplace_back(context, *groups.engine, shards_, *plan.model, chunk, rank.layout,
                         weights_, &lanes_, &pass_buffers_,
                         nn::FrozenWeights{&rank.frozen, frozen_weights_});
    if (!plan.train_data.target_deviation.empty()) {
      chunks_.back().set_units(plan.train_data.target_deviation);
    }
  }
}

template <typename Use>
void StageState::for_weights(const Use& use) const {
  const auto each = [&](const nn::ParameterLayout& layout, const TensorView& weights) {
    for (const nn::PlacedParameter& placed : layout.parameters) {
      // A borrowed parameter may use the owner's weights in place.
      if (placed.offset < layout.weight_elements) {
        use(placed, weights.flat_slice(placed.offset, placed.shape.count()));
      }
    }
  };
  each(rank_.layout, weights_);
  each(rank_.frozen, frozen_weights_);
}

std::vector<nn::Stage*> StageState::chunks() {
  std::vector<nn::Stage*> chunks;
  for (nn::Stage& chunk : chunks_) {
    chunks.push_back(&chunk);
  }
  return chunks;
}

comm::ExposedSeconds StageState::exposed_seconds() const {
  comm::ExposedSeconds exposed;
  exposed.of(grid::Axis::kTensor) = shards_.exposed_seconds();
  exposed.of(grid::Axis::kData) = lanes_.exposed_seconds();
  return exposed;
}

void StageState::reset_clock() {
  shards_.reset_clock();
  lanes_.reset_clock();
}

void StageState::initialise(std::uint64_t seed) {
  for_weights([&](const nn::PlacedParameter& placed, const TensorView& weights) {
    nn::initialise(placed, seed, 0, weights);
  });
}

void StageState::load_weights(const io::Checkpoint& checkpoint, const nn::NamePatterns& except,
                              const std::string& prefix) {
  for_weights([&](const nn::PlacedParameter& placed, const TensorView& weights) {
    end_setup_on_stop_request();
    if (!except.matches(placed.spec.name)) {
      read_slice(checkpoint, stored_name(placed.spec, prefix), placed, 0, weights);
    }
  });
}

StoredState::StoredState(ops::Context& context, const plan::Plan& plan, const plan::RankPlan& rank,
                         comm::Groups& groups)
    : context_(context),
      plan_(plan),
      rank_(rank),
      stage_state_(context, plan, rank, groups),
      owned_(context.device(), rank.owned(), plan::rank_states(plan),
             compute_dtype(plan.config.numerics.dtype), stage_state_.weights()),
      frozen_masters_(device::Device::cpu(), rank.owned_frozen(), 0,
                      compute_dtype(plan.config.numerics.dtype), stage_state_.frozen_weights()) {}

template <typename Use>
void StoredState::for_owned(const Use& use) const {
  for (const optim::OwnedPiece& piece : owned_.pieces()) {
    use(owned_, piece, rank_.layout.parameters[piece.parameter]);
  }
  for (const optim::OwnedPiece& piece : frozen_masters_.pieces()) {
    use(frozen_masters_, piece, rank_.frozen.parameters[piece.parameter]);
  }
}

bool StoredState::has_masters() const {
  const DType dtype = plan_.config.numerics.dtype;
  return compute_dtype(dtype) != dtype;
}

std::vector<TensorView> StoredState::trained_tensors() const {
  std::vector<TensorView> tensors = owned_.tensors();
  tensors.push_back(stage_state_.weights());
  // A stage may have no parameters.
  std::erase_if(tensors, [](const TensorView& tensor) { return tensor.count() == 0; });
  return tensors;
}

void StoredState::copy_master(const optim::OwnedPiece& piece, const TensorView& into) const {
  const device::HostView masters(owned_.master(piece), context_.stream());
  device::copy_tensor(masters.view(), into);
}

std::uint64_t StoredState::weights_hash() const {
  StreamingHash hash;
  add_to(hash, stage_state_.weights(), context_.stream());
  add_to(hash, stage_state_.frozen_weights(), context_.stream());
  return hash.digest();
}

std::uint64_t StoredState::optimizer_hash() const {
  StreamingHash hash;
  for (const optim::OwnedTensors* const owned : {&owned_, &frozen_masters_}) {
    for (const TensorView& tensor : owned->tensors()) {
      add_to(hash, tensor, context_.stream());
    }
  }
  return hash.digest();
}

std::vector<io::TensorSlice> StoredState::snapshot(const device::Buffer& memory) const {
  std::vector<io::TensorSlice> all = slices();
  const std::int64_t copied = memory.empty() ? 0 : copy_data(all, memory, 0, context_.stream());
  add_frozen(all, memory, copied);
  return all;
}

void StoredState::add_frozen(std::vector<io::TensorSlice>& slices, const device::Buffer& memory,
                             std::int64_t offset_bytes) const {
  std::vector<io::TensorSlice> frozen = frozen_slices();
  if (!memory.empty() && !frozen.empty() &&
      frozen.front().data.memory_space() != MemorySpace::kHost) {
    copy_data(frozen, memory, offset_bytes, context_.stream());
  }
  slices.insert(slices.end(), frozen.begin(), frozen.end());
}

std::vector<io::TensorSlice> StoredState::slices(const std::string& prefix) const {
  return slices_of(owned_, rank_.layout, prefix);
}

std::vector<io::TensorSlice> StoredState::frozen_slices() const {
  return slices_of(frozen_masters_, rank_.frozen, "");
}

void StoredState::add_placed(std::vector<io::TensorSlice>& slices, const std::string& name,
                             const nn::PlacedParameter& placed, const optim::OwnedPiece& piece,
                             const ConstTensorView& data) const {
  if (rank_.coordinates.tensor == 0 || placed.spec.split != nn::kNotSplit) {
    slices.push_back({.name = name,
                      .global_shape = placed.spec.shape,
                      .range = piece.range,
                      .data = data,
                      .shard = shard_of(placed)});
  }
}

void StoredState::add_slice(std::vector<io::TensorSlice>& slices, const std::string& name,
                            const optim::OwnedPiece& piece, const ConstTensorView& data) const {
  add_placed(slices, name, rank_.layout.parameters[piece.parameter], piece, data);
}

void StoredState::read(const io::Checkpoint& checkpoint, const std::string& name,
                       const optim::OwnedPiece& piece, const TensorView& into) const {
  end_setup_on_stop_request();
  read_slice(checkpoint, name, rank_.layout.parameters[piece.parameter], piece.range.begin, into);
}

std::vector<io::TensorSlice> StoredState::slices_of(const optim::OwnedTensors& owned,
                                                    const nn::ParameterLayout& layout,
                                                    const std::string& prefix) const {
  std::vector<io::TensorSlice> slices;
  for (const optim::OwnedPiece& piece : owned.pieces()) {
    const nn::PlacedParameter& placed = layout.parameters[piece.parameter];
    add_placed(slices, stored_name(placed.spec, prefix), placed, piece, owned.master(piece));
    const std::vector<std::string> states =
        plan::state_names(placed.spec, plan_.config.optimizer.options, prefix);
    for (std::size_t i = 0; i < states.size(); ++i) {
      add_placed(slices, states[i], placed, piece, owned.state(i, piece));
    }
  }
  return slices;
}

void StoredState::initialise() {
  const std::uint64_t seed = plan_.config.run.seed;
  stage_state_.initialise(seed);
  for_owned([&](const optim::OwnedTensors& owned, const optim::OwnedPiece& piece,
                const nn::PlacedParameter& placed) {
    if (has_masters()) {
      nn::initialise(placed, seed, piece.range.begin, owned.master(piece));
    }
  });
}

void StoredState::load_weights(const io::Checkpoint& checkpoint, const nn::NamePatterns& except,
                               const std::string& prefix) {
  stage_state_.load_weights(checkpoint, except, prefix);
  for_owned([&](const optim::OwnedTensors& owned, const optim::OwnedPiece& piece,
                const nn::PlacedParameter& placed) {
    if (has_masters() && !except.matches(placed.spec.name)) {
      end_setup_on_stop_request();
      read_slice(checkpoint, stored_name(placed.spec, prefix), placed, piece.range.begin,
                 owned.master(piece));
    }
  });
}

void StoredState::load_state(const io::Checkpoint& checkpoint, const std::string& prefix) {
  for (const optim::OwnedPiece& piece : owned_.pieces()) {
    const nn::PlacedParameter& placed = rank_.layout.parameters[piece.parameter];
    const std::vector<std::string> states =
        plan::state_names(placed.spec, plan_.config.optimizer.options, prefix);
    for (std::size_t i = 0; i < states.size(); ++i) {
      end_setup_on_stop_request();
      read_slice(checkpoint, states[i], placed, piece.range.begin, owned_.state(i, piece));
    }
  }
}

}  // namespace strata::train
