#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "strata/device/buffer.hpp"
#include "strata/nn/model.hpp"
#include "strata/nn/stage.hpp"
#include "strata/pipeline/executor.hpp"
#include "strata/pipeline/schedule.hpp"

#include "in_process.hpp"

namespace {

using namespace strata;

/// Adds every microbatch's gradients into one arena.
class Arena final : public nn::GradientSink {
 public:
  explicit Arena(std::int64_t elements)
      : memory_(device::Device::cpu(), elements * 4),
        gradients_(memory_.view(0, Shape{elements}, DType::kFloat32)) {}

  Target begin_microbatch(std::int64_t m, const grid::Range& /*layers*/) override {
    return {gradients_, m == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd};
  }
  bool acts_on(std::int64_t /*m*/, std::int64_t /*layer*/) const override { return false; }
  void layer_done(std::int64_t /*m*/, std::int64_t /*layer*/) override {}
  void finish() override {}

 private:
  device::Buffer memory_;
  TensorView gradients_;
};

/// The same samples for every microbatch.
class Samples final : public pipeline::MicrobatchSource {
 public:
  Samples(std::int64_t rows, std::int64_t features)
      : values_(static_cast<std::size_t>(rows * features), 0.5F),
        labels_(static_cast<std::size_t>(rows), 1),
        rows_(rows),
        features_(features) {}

  ConstTensorView inputs(std::int64_t /*m*/) override {
    return {reinterpret_cast<const std::byte*>(values_.data()), Shape{rows_, features_},
            DType::kFloat32};
  }
  ConstTensorView targets(std::int64_t /*m*/) override {
    return {reinterpret_cast<const std::byte*>(labels_.data()), Shape{rows_}, DType::kInt64};
  }
  std::int64_t first_row(std::int64_t m) override { return m * rows_; }
  std::int64_t valid_rows(std::int64_t /*m*/) override { return rows_; }

 private:
  std::vector<float> values_;
  std::vector<std::int64_t> labels_;
  std::int64_t rows_;
  std::int64_t features_;
};

struct Task {
  std::vector<std::string> layers;
  std::int64_t features = 0;
  std::int64_t microbatch = 0;
  std::int64_t microbatches = 0;
};

/// Training steps, without the update, on one rank that holds the whole model.
void train(benchmark::State& state, const Task& task) {
  comm::run_in_process_ranks(1, [&](comm::Communicator& group) {
    ops::Context context(1);
    const nn::Model model(
        {.layers = task.layers, .input_shape = Shape{task.features}, .outputs = 10, .seed = 1});
    const grid::Range all{0, model.layer_count()};
    const nn::ParameterLayout layout = nn::layout_of(model.parameters(), all);
    const device::Buffer memory(context.device(), layout.weight_elements * 4);
    const TensorView weights = memory.view(0, Shape{layout.weight_elements}, DType::kFloat32);
    for (const nn::PlacedParameter& placed : layout.parameters) {
      nn::initialise(placed, 1, 0, weights.flat_slice(placed.offset, placed.shape.count()));
    }
    const pipeline::Schedule schedule =
        pipeline::make_schedule(pipeline::ScheduleKind::k1f1b, {1, task.microbatches});
    comm::ProgressEngine engine;
    comm::ShardGroup shards(1);
    nn::Stage stage(context, engine, shards, model,
                    {.layers = all,
                     .pass = {.microbatch = task.microbatch},
                     .slots = pipeline::slots_for(schedule, {}),
                     .order = nn::BackwardOrder::kFused},
                    layout, weights);
    pipeline::Executor executor({&stage}, group, engine);
    Arena arena(layout.elements);
    Samples samples(task.microbatch, task.features);
    for (auto _ : state) {
      benchmark::DoNotOptimize(executor.train(schedule, samples, 1.0, arena));
    }
    const auto actions = static_cast<std::int64_t>(schedule.stage_actions[0].size());
    state.counters["samples"] =
        benchmark::Counter(static_cast<double>(task.microbatch * task.microbatches),
                           benchmark::Counter::kIsIterationInvariantRate);
    state.counters["action"] = benchmark::Counter(
        static_cast<double>(actions),
        benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  });
}

BENCHMARK_CAPTURE(train, mlp,
                  Task{.layers = {"dense 128 relu", "dropout 0.2", "dense 10"},
                       .features = 784,
                       .microbatch = 128,
                       .microbatches = 1})
    ->UseRealTime();
BENCHMARK_CAPTURE(train, mlp_in_four,
                  Task{.layers = {"dense 128 relu", "dropout 0.2", "dense 10"},
                       .features = 784,
                       .microbatch = 32,
                       .microbatches = 4})
    ->UseRealTime();
// Next to no arithmetic: what is left is the cost of an action.
BENCHMARK_CAPTURE(train, overhead,
                  Task{.layers = {"dense 10"}, .features = 4, .microbatch = 1, .microbatches = 64})
    ->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
