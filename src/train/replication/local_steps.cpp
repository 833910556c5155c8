#include "replication/local_steps.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "strata/comm/values.hpp"
#include "strata/core/clock.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/grid/tree.hpp"
#include "strata/plan/checkpoint_names.hpp"
#include "strata/plan/replication.hpp"

#include "replication/outer_state.hpp"

namespace strata::train {
namespace {

/// Added in the order of the sum tree over islands: one number of each.
double sum_of(std::span<const double> numbers) {
  return grid::sum_in_tree(grid::SumTree(std::ssize(numbers)), numbers);
}

double mean_of(std::span<const double> numbers) {
  return sum_of(numbers) / static_cast<double>(numbers.size());
}

}  // namespace

LocalSteps::LocalSteps(const TrainerSetup& setup, const plan::RankPlan& rank, RankState& state,
                       pipeline::Executor& executor)
    : Replication(setup, rank, state, executor),
      context_(setup.context),
      outer_(setup.groups.along(grid::Axis::kIslands), plan::outer_share(plan_, rank)) {
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

void LocalSteps::copy_to_islands() {
  for (const optim::OuterOptimizer::Piece& piece : outer_.pieces()) {
    device::copy_tensor(state_.owned().master(piece.owned), outer_.weights(piece));
  }
  for (std::int64_t i = 0; swaps() && i < own(); ++i) {
    store(i);
  }
}

void LocalSteps::load(const io::Checkpoint* checkpoint) {
  if (checkpoint == nullptr) {
    copy_to_islands();
    return;
  }
  for (std::int64_t i = 0; i < own(); ++i) {
    const std::string prefix = prefix_of(i);
    state_.load_weights(*checkpoint, {}, plan::islands_differ(plan_) ? prefix : "");
    state_.load_state(*checkpoint, prefix);
    for_errors(i, [&](const std::string& name, const optim::OwnedPiece& piece,
                      const TensorView& error) { state_.read(*checkpoint, name, piece, error); });
    if (swaps()) {
      store(i);
    }
    current_ = i;
  }
  load_outer(*checkpoint, state_, outer_);
}

template <typename Use>
void LocalSteps::for_errors(std::int64_t own_island, const Use& use) const {
  for (const optim::OuterOptimizer::Piece& piece : outer_.pieces()) {
    if (outer_.rounds()) {
      use(plan::outer_name(prefix_of(own_island), plan::kPackingError, state_.spec_of(piece.owned)),
          piece.owned, outer_.difference_error(own_island, piece));
    }
  }
}

void LocalSteps::copy(std::int64_t own_island, Slot to) {
  if (!swaps()) {
    return;  // a stage without parameters
  }
  const device::Buffer& slot = slots_[static_cast<std::size_t>(own_island)];
  std::int64_t offset_bytes = 0;
  for (const TensorView& tensor : state_.trained_tensors()) {
    const TensorView stored = slot.view(offset_bytes, tensor.shape(), tensor.dtype());
    device::copy_tensor(to == Slot::kStore ? tensor : stored, to == Slot::kStore ? stored : tensor,
                        context_.stream());
    offset_bytes += plan::slot_bytes_of(tensor.bytes());
  }
}

void LocalSteps::store(std::int64_t own_island) {
  copy(own_island, Slot::kStore);
  context_.stream().synchronize();
}

void LocalSteps::enter(std::int64_t own_island) {
  if (current_ == own_island) {
    return;
  }
  state_.drain();
  if (current_ >= 0) {
    store(current_);
  }
  copy(own_island, Slot::kLoad);
  current_ = own_island;
}

void LocalSteps::require_good() {
  comm::agree(world_, [&] {
    for (std::int64_t i = 0; i < own(); ++i) {
      enter(i);
      state_.require_finite();
    }
  });
}

nlohmann::json LocalSteps::record() const {
  nlohmann::json record = rendezvous_ ? rendezvous_->record() : nlohmann::json::object();
  record["virtual_grid"][plan::kPartsKey] = plan_.parts;
  return record;
}

void LocalSteps::load_evaluation_weights() {
  if (!plan::islands_differ(plan_) || current_ < 0) {
    return;
  }
  state_.drain();
  store(current_);
  current_ = -1;
  for (const optim::OuterOptimizer::Piece& piece : outer_.pieces()) {
    device::copy_tensor(outer_.weights(piece), state_.owned().master(piece.owned));
  }
  state_.publish_weights();
  state_.drain();
}

bool LocalSteps::takes_part(std::int64_t island, std::int64_t step) const {
  const std::int64_t length = plan_.config.local.steps;
  const std::int64_t end = (step + length - 1) / length * length;
  const auto round = std::ranges::find(rounds_, end, &IslandRound::step);
  return round == rounds_.end() || std::ranges::count(round->islands, island) > 0;
}

void LocalSteps::catch_up(const RoundOutcome& outcome) {
  if (outcome.kind == RoundOutcome::Kind::kExcluded) {
    // The optimizer state has gone through the rounds that have this island, and no others.
    current_ = -1;
    enter(0);
  }
  merge(0);
  state_.drain();
  store(0);
}

std::int64_t LocalSteps::start(std::int64_t step) {
  step_ = step;
  if (rendezvous_) {
    const RoundOutcome outcome = rendezvous_->join(step);
    if (outcome.kind == RoundOutcome::Kind::kExcluded) {
      catch_up(outcome);
    }
    step_ = outcome.step;
  } else if (const std::string& record = plan_.config.local.record; !record.empty()) {
    const IslandsStart start{
        .step = step,
        .weights = start_hash(world_, state_, outer_, context_.stream(), rank_.coordinates.islands),
        .config_text = setup_.config_text};
    comm::agree_on_first(
        world_, [&] { require_same_run(record, plan_, start, "local.record", setup_.log); });
  }
  return step_;
}

AgreedPoint LocalSteps::advance(TrainingLoop& loop) {
  AgreedPoint point;
  summaries_.clear();
  do {
    StepResult& result = run_step(loop, point, [&](StepResult& of_step) { train(loop, of_step); });
    if (is_round_end(step_)) {
      const double begin = now_seconds();
      if (rendezvous_) {
        synchronize(loop, point);
      }
      exchange(point.results);
      const double waited = now_seconds() - begin;
      result.times.communication.of(grid::Axis::kIslands) += waited;
      result.times.step += waited;
    }
    loop.end_step(result);
  } while (!is_round_end(step_));
  if (point.step > step_) {
    step_ = point.step;
    if (step_ < plan_.total_steps) {
      runner_->restart(step_);
    }
  }
  agree_on(loop, point);
  return point;
}

void LocalSteps::synchronize(TrainingLoop& loop, AgreedPoint& point) {
  state_.drain();
  const RoundOutcome outcome = rendezvous_->synchronize(step_, [&] { return loop.stop_request(); });
  if (outcome.kind == RoundOutcome::Kind::kStopped) {
    point.stopped = "while other islands were waited for";
  } else {
    catch_up(outcome);
  }
  point.step = outcome.step;
}

void LocalSteps::train(TrainingLoop& loop, StepResult& result) {
  auto update = StepResult::Update::kDone;
  std::vector<StepSummary>& summaries = summaries_.emplace_back();
  std::int64_t last = own() - 1;
  while (last > 0 && !trains(last, step_)) {
    --last;
  }
  for (std::int64_t i = 0; i < own(); ++i) {
    if (!trains(i, step_)) {
      summaries.push_back({});
      continue;
    }
    enter(i);
    // What is asked between the ends of rounds would not be known everywhere.
    const bool asks = is_round_end(step_) && i == last;
    runner_->train(
        i * plan_.microbatches, [&] { return asks ? loop.requests(step_) : StepRequests(); },
        result, prefix_of(i));
    summaries.push_back(result.summary);
    update = result.update == StepResult::Update::kSkipped ? result.update : update;
  }
  result.update = update;
  result.times.communication.of(grid::Axis::kIslands) += average(step_);
}

double LocalSteps::average(std::int64_t step) {
  if (rendezvous_) {
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
      for (std::int64_t island = 0; island < plan_.parts; ++island) {
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

void LocalSteps::merge(std::size_t fragment) {
  const double mix = plan_.config.local.mix;
  for (std::int64_t i = 0; i < own(); ++i) {
    enter(i);
    state_.drain();
    for (const optim::OuterOptimizer::Piece& piece : outer_.pieces(fragment)) {
      const TensorView master = state_.owned().master(piece.owned);
      device::write_from_host(master, [&](std::int64_t first, const TensorView& into) {
        const device::HostView before(master.flat_slice(first, into.count()), context_.stream());
        outer_.merge(piece, first, before.view(), mix, into);
      });
    }
    state_.publish_weights();
  }
}

void LocalSteps::exchange(std::span<StepResult> round) {
  // Of an island in a step: the loss, the squared norm, and loss and targets of each data set.
  const auto sets = static_cast<std::size_t>(runner_->sets_told_apart());
  const std::size_t width = 2 + 2 * sets;
  std::vector<double> mine{round.back().summary.requests.encoded()};
  for (const std::vector<StepSummary>& step : summaries_) {
    StepDigests digests;
    for (const StepSummary& island : step) {
      mine.push_back(island.loss);
      mine.push_back(island.grad_norm * island.grad_norm);
      for (std::size_t set = 0; set < sets; ++set) {
        const auto sum = set < island.sets.size() ? island.sets[set] : nn::MicrobatchLoss::Sample();
        mine.push_back(sum.loss);
        mine.push_back(sum.counted);
      }
      digests += island.digests.value_or(StepDigests());
    }
    if (step.back().digests) {
      const std::vector<double> halves = halves_of(digests);
      mine.insert(mine.end(), halves.begin(), halves.end());
    }
  }
  const auto ranks = static_cast<std::size_t>(setup_.groups.along(grid::Axis::kIslands).size());
  const std::vector<double> all = comm::gathered_rows(setup_.groups.along(grid::Axis::kIslands),
                                                      std::span(std::as_const(mine)));
  const auto number = [&](std::size_t rank, std::size_t at) {
    return all[rank * mine.size() + at];
  };
  const auto each = static_cast<std::size_t>(own());
  std::size_t at = 1;
  for (StepResult& result : round) {
    std::vector<std::vector<double>> numbers(width);
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < each; ++i) {
        const auto island = static_cast<std::int64_t>(r * each + i);
        if (!rendezvous_ && !takes_part(island, result.step)) {
          continue;
        }
        for (std::size_t k = 0; k < width; ++k) {
          numbers[k].push_back(number(r, at + i * width + k));
        }
      }
    }
    at += each * width;
    if (result.summary.digests) {
      std::vector<double> halves(halves_of({}).size());
      for (std::size_t r = 0; r < ranks; ++r) {
        for (std::size_t i = 0; i < halves.size(); ++i) {
          halves[i] += number(r, at + i);
        }
      }
      result.summary.digests = digests_in(halves);
      at += halves.size();
    }
    result.summary.loss = mean_of(numbers[0]);
    result.summary.grad_norm = std::sqrt(mean_of(numbers[1]));
    result.summary.sets.clear();
    for (std::size_t k = 2; k < width; k += 2) {
      result.summary.sets.push_back(
          {.loss = sum_of(numbers[k]), .counted = sum_of(numbers[k + 1])});
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    round.back().summary.requests.add_encoded(number(r, 0));
  }
}

std::vector<io::TensorSlice> LocalSteps::snapshot(const device::Buffer& memory) {
  std::vector<io::TensorSlice> all;
  std::int64_t offset_bytes = 0;
  const auto add = [&](std::vector<io::TensorSlice> slices) {
    offset_bytes = copy_data(slices, memory, offset_bytes, context_.stream());
    all.insert(all.end(), slices.begin(), slices.end());
  };
  for (std::int64_t i = 0; i < own(); ++i) {
    enter(i);
    std::vector<io::TensorSlice> slices = state_.slices(prefix_of(i));
    if (!plan::islands_differ(plan_)) {
      std::erase_if(slices, [](const io::TensorSlice& slice) {
        return slice.name.find(plan::kWeightPrefix) != std::string::npos;
      });
    }
    add(std::move(slices));
  }
  std::vector<io::TensorSlice> outer = outer_slices(state_, outer_);
  for (std::int64_t i = 0; i < own(); ++i) {
    for_errors(i, [&](const std::string& name, const optim::OwnedPiece& piece,
                      const TensorView& error) { state_.add_slice(outer, name, piece, error); });
  }
  add(std::move(outer));
  if (rank_.coordinates.islands == 0) {
    state_.add_frozen(all, memory, offset_bytes);
  }
  return all;
}

}  // namespace strata::train
