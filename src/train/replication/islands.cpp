#include "replication/islands.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "strata/comm/agree.hpp"
#include "strata/core/clock.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/grid/tree.hpp"
#include "strata/train/checkpoint_names.hpp"

namespace strata::train {
namespace {

/// The mean over islands of one number of each, added in the order of the sum tree.
double mean_of(std::span<const double> numbers) {
  return grid::sum_in_tree(grid::SumTree(std::ssize(numbers)), numbers) /
         static_cast<double>(numbers.size());
}

}  // namespace

Islands::Islands(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state)
    : setup_(setup),
      plan_(setup.plan),
      rank_(rank),
      groups_(setup.groups),
      context_(setup.context),
      state_(state),
      outer_(*setup.groups.islands, plan::outer_options(plan_), plan::island_share(plan_, rank),
             rank.layout, rank.buckets, rank.coordinates.data, plan_.fragments,
             compute_dtype(plan_.config.numerics.dtype)) {
  if (!plan_.config.parallel.island_of.empty()) {
    rendezvous_.emplace(setup, rank, state, outer_);
  }
  if (!plan_.config.local.record.empty()) {
    rounds_ = island_rounds(plan_.config.local.record);
    if (rounds_.empty()) {
      fail(ExitCode::kUsage,
           "local.record: {} has no record of rounds; name the directory of "
           "parallel.island_of of a finished run",
           plan_.config.local.record);
    }
  }
  const std::int64_t bytes = plan::island_slot_bytes(plan_, rank);
  for (std::int64_t i = 0; bytes > 0 && i < own(); ++i) {
    slots_.emplace_back(device::Device::cpu(), bytes);
  }
}

void Islands::start() {
  for (const optim::OuterOptimizer::Piece& piece : outer_.pieces()) {
    device::copy_tensor(state_.optimizer().master(piece.owned), outer_.weights(piece));
  }
  for (std::int64_t i = 0; swaps() && i < own(); ++i) {
    store(i);
  }
}

void Islands::load(const io::Checkpoint& checkpoint) {
  for (std::int64_t i = 0; i < own(); ++i) {
    const std::string prefix = island_prefix(rank_.first_island + i);
    state_.load_weights(checkpoint, {}, plan::islands_differ(plan_) ? prefix : "");
    state_.load_state(checkpoint, prefix);
    if (swaps()) {
      store(i);
    }
    current_ = i;
  }
  load_outer(checkpoint, state_, outer_);
  for (const optim::OuterOptimizer::Piece& piece : outer_.pieces()) {
    const nn::ParameterSpec& spec = state_.spec_of(piece.owned);
    const auto read = [&](const std::string& name, const TensorView& into) {
      state_.read(checkpoint, name, piece.owned, into);
    };
    if (outer_.rounds()) {
      read(outer_name(kOuterPrefix, kPackingError, spec), outer_.sum_error(piece));
      for (std::int64_t i = 0; i < own(); ++i) {
        read(outer_name(island_prefix(rank_.first_island + i), kPackingError, spec),
             outer_.difference_error(i, piece));
      }
    }
  }
}

void Islands::store(std::int64_t own_island) {
  std::int64_t offset_bytes = 0;
  for (const TensorView& tensor : state_.trained_tensors()) {
    const device::Buffer& slot = slots_[static_cast<std::size_t>(own_island)];
    device::copy_tensor(tensor, slot.view(offset_bytes, tensor.shape(), tensor.dtype()),
                        context_.stream());
    offset_bytes += plan::slot_bytes_of(tensor.bytes());
  }
  context_.stream().synchronize();
}

void Islands::enter(std::int64_t own_island) {
  if (current_ == own_island) {
    return;
  }
  state_.drain();
  if (current_ >= 0) {
    store(current_);
  }
  std::int64_t offset_bytes = 0;
  for (const TensorView& tensor : state_.trained_tensors()) {
    const device::Buffer& slot = slots_[static_cast<std::size_t>(own_island)];
    device::copy_tensor(slot.view(offset_bytes, tensor.shape(), tensor.dtype()), tensor,
                        context_.stream());
    offset_bytes += plan::slot_bytes_of(tensor.bytes());
  }
  current_ = own_island;
}

void Islands::require_finite() {
  for (std::int64_t i = 0; i < own(); ++i) {
    enter(i);
    state_.require_finite();
  }
}

void Islands::show_outer() {
  if (!plan::islands_differ(plan_) || current_ < 0) {
    return;
  }
  state_.drain();
  store(current_);
  current_ = -1;
  for (const optim::OuterOptimizer::Piece& piece : outer_.pieces()) {
    device::copy_tensor(outer_.weights(piece), state_.optimizer().master(piece.owned));
  }
  state_.publish_weights();
  state_.drain();
}

bool Islands::takes_part(std::int64_t island, std::int64_t step) const {
  const std::int64_t length = plan_.config.local.steps;
  const std::int64_t end = (step + length - 1) / length * length;
  const auto round = std::ranges::find(rounds_, end, &IslandRound::step);
  return round == rounds_.end() || std::ranges::count(round->islands, island) > 0;
}

void Islands::go_on_from(const IslandRendezvous::Met& met) {
  if (met.kind == IslandRendezvous::Kind::kLeftOut) {
    // The optimizer state has gone through the rounds that have this island, and no others.
    current_ = -1;
    enter(0);
  }
  merge(0);
  state_.drain();
  store(0);
}

IslandRendezvous::Met Islands::meet(std::int64_t step,
                                    const std::function<StopRequest()>& stop_request) {
  state_.drain();
  const IslandRendezvous::Met met = rendezvous_->meet(step, stop_request);
  if (met.kind != IslandRendezvous::Kind::kStopped) {
    go_on_from(met);
  }
  return met;
}

std::int64_t Islands::join(std::int64_t step, bool is_new) {
  if (!rendezvous_) {
    if (const std::string& record = plan_.config.local.record; !record.empty()) {
      comm::Communicator& world = *groups_.world;
      const std::string weights =
          start_hash(world, state_, outer_, context_.stream(), rank_.coordinates.islands);
      comm::agree(world, [&] {
        if (world.rank() == 0) {
          require_same_run(record, plan_, step, weights, setup_.config_text, "local.record",
                           setup_.log);
        }
      });
    }
    return step;
  }
  const IslandRendezvous::Met met = rendezvous_->join(step, is_new);
  if (met.kind == IslandRendezvous::Kind::kLeftOut) {
    go_on_from(met);
  }
  return met.step;
}

double Islands::end_step(std::int64_t step) {
  if (are_jobs()) {
    return 0.0;
  }
  outer_.reset_clock();
  const auto& local = plan_.config.local;
  const std::int64_t in_round = (step - 1) % local.steps + 1;
  if (outer_.is_under_way()) {
    outer_.advance();
  }
  for (std::size_t f = 0; f < plan_.fragments.size(); ++f) {
    const std::int64_t due =
        grid::even_part(local.steps, local.fragments, static_cast<std::int64_t>(f)).end;
    if (in_round == due - local.delay) {
      for (std::int64_t i = 0; i < own(); ++i) {
        if (!trains(i, step)) {
          continue;
        }
        enter(i);
        state_.drain();
        outer_.add(f, i, [&](const optim::OuterOptimizer::Piece& piece, const TensorView& into) {
          state_.copy_master(piece.owned, into);
        });
      }
      std::vector<std::int64_t> present;
      for (std::int64_t island = 0; island < plan_.islands; ++island) {
        if (takes_part(island, step)) {
          present.push_back(island);
        }
      }
      outer_.start(f, std::move(present));
    }
    if (in_round == due) {
      outer_.finish();
      merge(f);
    }
  }
  return outer_.exposed_seconds();
}

void Islands::merge(std::size_t fragment) {
  const double mix = plan_.config.local.mix;
  for (std::int64_t i = 0; i < own(); ++i) {
    enter(i);
    state_.drain();
    for (const optim::OuterOptimizer::Piece& piece : outer_.pieces(fragment)) {
      const TensorView master = state_.optimizer().master(piece.owned);
      device::write_from_host(master, [&](std::int64_t first, const TensorView& into) {
        const device::HostView before(master.flat_slice(first, into.count()), context_.stream());
        outer_.merge(piece, first, before.view(), mix, into);
      });
    }
    state_.publish_weights();
  }
}

double Islands::exchange(std::span<StepResult> round) {
  const double begin = now_seconds();
  std::vector<double> mine{round.back().summary.requests.encoded()};
  for (const StepResult& result : round) {
    for (const StepSummary& island : result.islands) {
      mine.push_back(island.loss);
      mine.push_back(island.grad_norm * island.grad_norm);
    }
  }
  std::vector<double> all(mine.size() * static_cast<std::size_t>(groups_.islands->size()));
  groups_.islands->all_gather(comm::payload_of(std::span(std::as_const(mine))),
                              comm::payload_of(std::span(all)));
  const auto number = [&](std::size_t rank, std::size_t at) {
    return all[rank * mine.size() + at];
  };
  const auto ranks = static_cast<std::size_t>(groups_.islands->size());
  std::size_t at = 1;
  for (StepResult& result : round) {
    std::vector<double> losses;
    std::vector<double> squares;
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < result.islands.size(); ++i) {
        const auto island = static_cast<std::int64_t>(r * result.islands.size() + i);
        if (!are_jobs() && !takes_part(island, result.step)) {
          continue;
        }
        losses.push_back(number(r, at + 2 * i));
        squares.push_back(number(r, at + 2 * i + 1));
      }
    }
    at += 2 * result.islands.size();
    result.summary.loss = mean_of(losses);
    result.summary.grad_norm = std::sqrt(mean_of(squares));
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    round.back().summary.requests.add_encoded(number(r, 0));
  }
  return now_seconds() - begin;
}

std::vector<io::TensorSlice> Islands::snapshot(const device::Buffer& memory) {
  std::vector<io::TensorSlice> all;
  std::int64_t offset_bytes = 0;
  const auto add = [&](std::vector<io::TensorSlice> slices) {
    offset_bytes = copy_data(slices, memory, offset_bytes, context_.stream());
    all.insert(all.end(), slices.begin(), slices.end());
  };
  for (std::int64_t i = 0; i < own(); ++i) {
    enter(i);
    std::vector<io::TensorSlice> slices = state_.slices(island_prefix(rank_.first_island + i));
    if (!plan::islands_differ(plan_)) {
      std::erase_if(slices, [](const io::TensorSlice& slice) {
        return slice.name.find(kWeightPrefix) != std::string::npos;
      });
    }
    add(std::move(slices));
  }
  std::vector<io::TensorSlice> outer = outer_slices(state_, outer_);
  const auto add_outer = [&](const optim::OuterOptimizer::Piece& piece, const std::string& name,
                             const TensorView& data) {
    if (auto slice = state_.slice_of(name, piece.owned, data)) {
      outer.push_back(std::move(*slice));
    }
  };
  for (const optim::OuterOptimizer::Piece& piece : outer_.summed_pieces()) {
    if (outer_.rounds()) {
      add_outer(piece, outer_name(kOuterPrefix, kPackingError, state_.spec_of(piece.owned)),
                outer_.sum_error(piece));
    }
  }
  for (std::int64_t i = 0; outer_.rounds() && i < own(); ++i) {
    for (const optim::OuterOptimizer::Piece& piece : outer_.pieces()) {
      add_outer(piece,
                outer_name(island_prefix(rank_.first_island + i), kPackingError,
                           state_.spec_of(piece.owned)),
                outer_.difference_error(i, piece));
    }
  }
  add(std::move(outer));
  if (rank_.coordinates.islands == 0) {
    // Masters in host memory do not change while they are written.
    std::vector<io::TensorSlice> frozen = state_.frozen_slices();
    if (!frozen.empty() && frozen.front().data.memory_space() != MemorySpace::kHost) {
      copy_data(frozen, memory, offset_bytes, context_.stream());
    }
    all.insert(all.end(), frozen.begin(), frozen.end());
  }
  return all;
}

}  // namespace strata::train
