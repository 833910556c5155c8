#include "commands/planning/step_measurement.hpp"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <numeric>

#include <fmt/format.h>

#include "strata/comm/groups.hpp"
#include "strata/comm/trace.hpp"
#include "strata/core/clock.hpp"
#include "strata/core/random.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/host_copy.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/train/rank_state.hpp"

namespace strata::app {

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

namespace {

/// The mean of all but the longest tenth: a step is a sum of its operations, in which what disturbs
/// them now and then counts, but not what disturbs the machine once.
double typical_of(std::vector<double> values) {
  std::ranges::sort(values);
  const auto kept = std::max<std::ptrdiff_t>(1, std::ssize(values) * 9 / 10);
  return std::accumulate(values.begin(), values.begin() + kept, 0.0) / static_cast<double>(kept);
}

/// Of the host. A rank of one thread counts its own time, so that other programs on its core do not
/// matter.
double clock_seconds(const ops::Context& context) {
  if (context.device().kind() == device::DeviceKind::kCuda || context.threads() > 1) {
    return now_seconds();
  }
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// To four digits, which is more than a repetition agrees with.
double rounded(double value) {
  return std::strtod(fmt::format("{:.3e}", value).c_str(), nullptr);
}

/// The same random samples for every microbatch.
class RandomSamples final : public pipeline::MicrobatchSource {
 public:
  RandomSamples(ops::Context& context, const plan::Plan& plan) {
    const nn::Model& model = *plan.model;
    microbatch_ = plan.config.batch.micro;
    const DType dtype = plan.config.numerics.dtype;
    const RandomStream random(1, RandomPurpose::kSynthesise, 0);
    const auto filled = [&]<typename T>(const Shape& shape, DType of, T /*type*/,
                                        const auto& value_of) {
      const device::Buffer memory(device::Device::cpu(), shape.count() * size_bytes(of));
      device::Buffer result(context.device(), memory.bytes());
      std::uint64_t index = 0;
      for (T& value : memory.view(0, shape, of).host<T>()) {
        value = static_cast<T>(value_of(index++));
      }
      device::copy_tensor(memory.view(0, shape, of), result.view(0, shape, of));
      return result;
    };
    const auto numbers = [&](const Shape& shape, DType of) {
      return with_stored(of, [&](auto type) {
        return filled(shape, of, type,
                      [&](std::uint64_t i) { return static_cast<float>(random.normal(i)); });
      });
    };
    const auto classes = [&](const Shape& shape, std::int64_t count) {
      return filled(shape, DType::kInt64, std::int64_t{}, [&](std::uint64_t i) {
        return random.uniform(i) * static_cast<double>(count);
      });
    };
    const Shape samples = model.layer(0).input_shape().prepended(microbatch_);
    const bool tokens = plan::is_language_model(plan);
    inputs_ = tokens ? classes(samples, plan.train_data.classes) : numbers(samples, dtype);
    input_ = inputs_.view(0, samples, tokens ? DType::kInt64 : dtype);
    const bool labels = model.loss() == nn::LossKind::kCrossEntropy;
    const Shape shape{labels ? nn::rows_at(model.output(), microbatch_)
                             : microbatch_ * model.output().shape.count()};
    targets_ = labels ? classes(shape, plan.train_data.classes) : numbers(shape, dtype);
    target_ = targets_.view(0, shape, labels ? DType::kInt64 : dtype);
    if (model.loss_options().compares_documents()) {
      const auto zeros = [&](const Shape& of, DType type, auto zero) {
        return filled(of, type, zero, [](std::uint64_t) { return 0; });
      };
      starts_ = zeros(samples, DType::kUint32, std::uint32_t{});
      references_ = zeros({microbatch_}, DType::kFloat64, double{});
      places_.document_starts = starts_.view(0, samples, DType::kUint32);
      reference_ = references_.view(0, {microbatch_}, DType::kFloat64);
    }
  }

  ConstTensorView inputs(std::int64_t /*m*/) override { return input_; }
  ConstTensorView targets(std::int64_t /*m*/) override { return target_; }
  nn::RowPlaces places(std::int64_t /*m*/) override { return places_; }
  ConstTensorView references(std::int64_t /*m*/) override { return reference_; }
  std::int64_t first_row(std::int64_t m) override { return m * microbatch_; }
  std::int64_t valid_rows(std::int64_t /*m*/) override { return microbatch_; }

 private:
  std::int64_t microbatch_ = 1;
  device::Buffer inputs_;
  device::Buffer targets_;
  device::Buffer starts_;
  device::Buffer references_;
  ConstTensorView input_;
  ConstTensorView target_;
  nn::RowPlaces places_;
  ConstTensorView reference_;
};

/// The groups of a rank whose messages are left out.
class SilentGroups {
 public:
  SilentGroups(const plan::Plan& plan, const grid::Coordinates& at) {
    const auto group = [&](std::int64_t rank, std::int64_t ranks) {
      return std::make_unique<comm::PlannedGroup>(
          trace_, comm::GroupSite{.rank = rank, .ranks = ranks, .in_node = ranks});
    };
    world_ = group(plan.grid.rank_of(at), plan.grid.ranks());
    groups_ = {.grid = plan.grid, .coordinates = at, .world = world_.get(), .engine = &engine_};
    for (const auto& [axis, name] : enum_table<grid::Axis>()) {
      groups_.axes[static_cast<std::size_t>(axis)] = group(at[axis], plan.grid[axis]);
    }
    groups_.lanes = group(at.data, plan.grid.data);
  }

  [[nodiscard]] comm::Groups& groups() { return groups_; }
  void forget() { static_cast<void>(trace_.take()); }

 private:
  comm::Trace trace_;
  comm::ProgressEngine engine_;
  std::unique_ptr<comm::Communicator> world_;
  comm::Groups groups_;
};

}  // namespace

OperationTimer::OperationTimer(ops::Context& context) : context_(context) {
  context_.set_observer(this);
}

void OperationTimer::record(bool on) {
  records_ = on;
  resume();
}

bool OperationTimer::begin(const ops::OperationWork& work) {
  work_ = work;
  if (context_.device().kind() == device::DeviceKind::kCuda) {
    resume();
  }
  return false;
}

void OperationTimer::end() {
  if (context_.device().kind() == device::DeviceKind::kCuda) {
    context_.synchronize();
  }
  const double seconds = clock_seconds(context_) - since_;
  if (records_) {
    seconds_[{work_.name, work_.dtype, work_.extents, work_.flops, work_.bytes}].push_back(seconds);
  }
  since_ = clock_seconds(context_);
}

void OperationTimer::resume() {
  if (context_.device().kind() == device::DeviceKind::kCuda) {
    context_.synchronize();
  }
  since_ = clock_seconds(context_);
}

OperationTimer::Times OperationTimer::times() const {
  Times times;
  for (const auto& [key, seconds] : seconds_) {
    const auto& [name, dtype, extents, flops, bytes] = key;
    if (flops + bytes > 0.0) {
      times[{std::string(name), dtype}].push_back({.extents = extents,
                                                   .flops = flops,
                                                   .bytes = bytes,
                                                   .seconds = rounded(typical_of(seconds))});
    }
  }
  return times;
}

double do_steps(ops::Context& context, OperationTimer& timer, const plan::Plan& plan,
                const plan::RankPlan& rank, const Repetitions& repetitions) {
  SilentGroups silent(plan, rank.coordinates);
  train::RankState state(context, plan, rank, silent.groups());
  state.initialise();
  pipeline::Executor executor(state.chunks(), silent.groups().along(grid::Axis::kPipeline),
                              *silent.groups().engine);
  RandomSamples samples(context, plan);
  const double scale = 1.0 / static_cast<double>(job_batch(plan) * plan.targets_per_sample);
  std::vector<double> steps;
  const double began = now_seconds();
  for (std::int64_t step = 1; step <= repetitions.most + 1; ++step) {
    const double begin = now_seconds();
    if (step > repetitions.least + 1 && begin - began > repetitions.seconds) {
      break;
    }
    timer.record(step > 1);
    static_cast<void>(executor.train(plan.training, samples, scale, state.reducer()));
    static_cast<void>(state.combine_tied());
    state.norm().begin(state.reducer().sums());
    static_cast<void>(state.update(0.0, 1.0, step));
    state.drain();
    context.synchronize();
    silent.forget();
    if (step > 1) {
      steps.push_back(now_seconds() - begin);
    }
  }
  timer.record(false);
  return median_of(std::move(steps));
}

}  // namespace strata::app
