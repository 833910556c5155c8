#include "strata/pipeline/executor.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/clock.hpp"
#include "strata/pipeline/simulator.hpp"

#include "in_process.hpp"
#include "stage_bench.hpp"

namespace strata::pipeline {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// Is never asked for a sample.
class NoSamples final : public MicrobatchSource {
 public:
  ConstTensorView inputs(std::int64_t /*m*/) override { throw std::runtime_error("inputs"); }
  ConstTensorView targets(std::int64_t /*m*/) override { throw std::runtime_error("targets"); }
  std::int64_t first_row(std::int64_t /*m*/) override { throw std::runtime_error("first row"); }
  std::int64_t valid_rows(std::int64_t /*m*/) override { throw std::runtime_error("valid rows"); }
};

TEST(Executor, RefusesSchedulesOfOtherChunks) {
  const nn::Model model({.layers = {"dense 3"}, .input_shape = {2}, .outputs = 3});
  comm::run_in_process_ranks(1, [&](comm::Communicator& world) {
    nn::test::StageBench<float> bench(model, nn::test::spec_of<float>({0, 1}, 2),
                                      comm::ShardGroup(1));
    nn::test::ArenaSink<float> sink(bench.layout().elements);
    NoSamples samples;
    comm::ProgressEngine engine;
    Executor executor({&bench.stage()}, world, engine);
    const Schedule train = make_schedule(ScheduleKind::kInterleaved, {1, 2, 2});
    const Schedule evaluate = insert_communication(forward_order(train.order, 1, 2));
    EXPECT_THAT([&] { static_cast<void>(executor.train(train, samples, 1.0, sink)); },
                ThrowsMessage<std::logic_error>(HasSubstr("2 chunks")));
    EXPECT_THAT([&] { static_cast<void>(executor.evaluate(evaluate, samples)); },
                ThrowsMessage<std::logic_error>(HasSubstr("2 chunks")));
  });
}

constexpr std::int64_t kMicrobatches = 7;

/// Microbatches of two samples of two inputs.
class Samples final : public MicrobatchSource {
 public:
  ConstTensorView inputs(std::int64_t m) override { return part<float>(inputs_, m, {2, 2}); }
  ConstTensorView targets(std::int64_t m) override { return part<std::int64_t>(targets_, m, {2}); }
  std::int64_t first_row(std::int64_t m) override { return 2 * m; }
  std::int64_t valid_rows(std::int64_t /*m*/) override { return 2; }

 private:
  template <typename T>
  static ConstTensorView part(std::vector<T>& values, std::int64_t m, const Shape& shape) {
    const auto count = static_cast<std::size_t>(shape.count());
    return {std::span<const T>(values).subspan(static_cast<std::size_t>(m) * count, count), shape};
  }
  std::vector<float> inputs_ = nn::test::numbers<float>(4 * kMicrobatches, 1);
  std::vector<std::int64_t> targets_{0, 1, 2, 2, 1, 0, 0, 2, 1, 0, 2, 1, 1, 1};
};

/// Waits once, as a reduction without a free slot does.
class SlowSink final : public nn::GradientSink {
 public:
  static constexpr double kSeconds = 0.05;

  explicit SlowSink(nn::GradientSink& sink) : sink_(sink) {}

  Target begin_microbatch(std::int64_t m, const grid::Range& layers) override {
    return sink_.begin_microbatch(m, layers);
  }
  bool acts_on(std::int64_t m, std::int64_t layer) const override {
    return sink_.acts_on(m, layer);
  }
  void layer_done(std::int64_t m, std::int64_t layer) override {
    if (m == 0 && layer == 1) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
    }
    sink_.layer_done(m, layer);
  }
  void finish() override { sink_.finish(); }

 private:
  nn::GradientSink& sink_;
};

TEST(Executor, AnEmulatedStageTakesItsTimesAndReportsEachLayer) {
  const nn::Model model({.layers = {"dense 3 relu", "dense 3"}, .input_shape = {2}, .outputs = 3});
  comm::run_in_process_ranks(1, [&](comm::Communicator& world) {
    const Schedule schedule = make_schedule(ScheduleKind::kGpipe, {1, 2});
    nn::StageSpec spec = nn::test::spec_of<float>({0, model.layer_count()}, 2);
    spec.slots = slots_for(schedule, {});
    nn::test::StageBench<float> bench(model, spec, comm::ShardGroup(1));
    nn::test::ArenaSink<float> sink(bench.layout().elements);
    const std::vector<float> before = sink.gradients();
    Samples samples;
    comm::ProgressEngine engine;
    Executor executor({&bench.stage()}, world, engine);
    const ChunkTimes times{0.004, 0.002, 0.003};
    executor.emulate({times});
    const double begin = now_seconds();
    static_cast<void>(executor.train(schedule, samples, 1.0, sink));
    EXPECT_GE(now_seconds() - begin, simulate(schedule, {.times = {{times}}}).step_seconds);
    std::vector<std::int64_t> reported;
    for (std::int64_t m = 0; m < 2; ++m) {
      for (std::int64_t layer = model.layer_count(); layer-- > 0;) {
        reported.push_back(100 * m + layer);
      }
    }
    EXPECT_EQ(sink.done(), reported);
    EXPECT_EQ(sink.gradients(), before);

    SlowSink slow(sink);
    const double slow_begin = now_seconds();
    static_cast<void>(executor.train(schedule, samples, 1.0, slow));
    EXPECT_GE(now_seconds() - slow_begin,
              simulate(schedule, {.times = {{times}}}).step_seconds + SlowSink::kSeconds);
  });
}

/// A chunk's layers with weights and gradients of their own.
struct ChunkBench {
  ChunkBench(const nn::Model& model, const nn::StageSpec& spec)
      : bench(model, spec, comm::ShardGroup(1)), sink(bench.layout().elements) {}

  nn::test::StageBench<float> bench;
  nn::test::ArenaSink<float> sink;
};

/// The chunks of a stage, each with the gradients of its layers.
class ChunkBenches final : public nn::GradientSink {
 public:
  ChunkBenches(const nn::Model& model, const Schedule& schedule, std::int64_t stage,
               const std::vector<std::int64_t>& cuts, nn::BackwardOrder backward) {
    for (const StageChunk& position : schedule.order.chunks()) {
      if (position.stage == stage) {
        const auto index = static_cast<std::size_t>(schedule.order.index_of(position));
        nn::StageSpec spec = nn::test::spec_of<float>({cuts[index], cuts[index + 1]}, 2);
        spec.slots = slots_for(schedule, position);
        spec.order = backward;
        chunks.push_back(std::make_unique<ChunkBench>(model, spec));
      }
    }
  }

  Target begin_microbatch(std::int64_t m, const grid::Range& layers) override {
    return of(layers.begin).sink.begin_microbatch(m, layers);
  }
  bool acts_on(std::int64_t /*m*/, std::int64_t /*layer*/) const override { return true; }
  void layer_done(std::int64_t m, std::int64_t layer) override {
    of(layer).sink.layer_done(m, layer);
  }
  void finish() override {}

  [[nodiscard]] std::vector<nn::Stage*> stages() {
    std::vector<nn::Stage*> all;
    for (const auto& chunk : chunks) {
      all.push_back(&chunk->bench.stage());
    }
    return all;
  }

  std::vector<std::unique_ptr<ChunkBench>> chunks;

 private:
  ChunkBench& of(std::int64_t layer) {
    return **std::ranges::find_if(
        chunks, [&](const auto& chunk) { return layer < chunk->bench.stage().layers().end; });
  }
};

/// What a step computes on all ranks together.
struct StepResult {
  std::map<std::string, std::vector<float>> gradients;
  std::vector<double> losses;
  std::vector<double> evaluated;

  friend bool operator==(const StepResult&, const StepResult&) = default;
};

std::vector<double> values_of(const std::vector<ops::LossSums>& sums) {
  std::vector<double> values;
  std::ranges::transform(sums, std::back_inserter(values), &ops::LossSums::loss);
  return values;
}

/// Two steps and an evaluation. `cuts`: where each chunk begins, and the model's end.
StepResult computed(const nn::Model& model, const Schedule& schedule,
                    const std::vector<std::int64_t>& cuts, nn::BackwardOrder backward) {
  const Schedule evaluation =
      insert_communication(forward_order(schedule.order, schedule.stages, kMicrobatches));
  StepResult result;
  std::mutex mutex;
  comm::run_in_process_ranks(schedule.stages, [&](comm::Communicator& world) {
    ChunkBenches benches(model, schedule, world.rank(), cuts, backward);
    Samples samples;
    comm::ProgressEngine engine;
    Executor executor(benches.stages(), world, engine);
    static_cast<void>(executor.train(schedule, samples, 0.5, benches));
    static_cast<void>(executor.train(schedule, samples, 0.5, benches));
    const std::vector<double> losses = values_of(benches.stages().back()->losses());
    const std::vector<double> evaluated = values_of(executor.evaluate(evaluation, samples));
    const std::lock_guard lock(mutex);
    for (const auto& chunk : benches.chunks) {
      result.gradients.merge(nn::test::slices_of(chunk->bench.layout(), chunk->sink.gradients()));
    }
    if (!losses.empty()) {
      result.losses = losses;
      result.evaluated = evaluated;
    }
  });
  return result;
}

TEST(Executor, ChunksGiveTheBitsOfOne) {
  // Layer 3 alone is inside the block: it hands on a gradient that none of its layers reads.
  const nn::Model model({.layers = {"dense 4", "residual", "dense 4 relu", "dense 4",
                                    "dense 4 relu", "end", "dense 3"},
                         .input_shape = {2},
                         .outputs = 3});
  struct Case {
    ScheduleKind kind;
    std::int64_t stages;
    std::vector<std::int64_t> cuts;
  };
  const std::vector<Case> cases{{ScheduleKind::kInterleaved, 1, {0, 3, 6}},
                                {ScheduleKind::kInterleaved, 1, {0, 2, 3, 4, 6}},
                                {ScheduleKind::kInterleaved, 2, {0, 2, 3, 4, 6}},
                                {ScheduleKind::kZbV, 1, {0, 3, 6}},
                                {ScheduleKind::kZbV, 2, {0, 2, 3, 4, 6}}};
  const StepResult expected =
      computed(model, make_schedule(ScheduleKind::kGpipe, {1, kMicrobatches}), {0, 6},
               nn::BackwardOrder::kSplit);
  ASSERT_EQ(std::ssize(expected.losses), kMicrobatches);
  ASSERT_EQ(expected.evaluated, expected.losses);
  for (const Case& c : cases) {
    const std::int64_t chunks = (std::ssize(c.cuts) - 1) / c.stages;
    for (const nn::BackwardOrder order : {nn::BackwardOrder::kSplit, nn::BackwardOrder::kFused}) {
      if (order == nn::BackwardOrder::kFused && c.kind == ScheduleKind::kZbV) {
        continue;  // computes weight gradients later
      }
      SCOPED_TRACE(fmt::format("{} on {} stages, backward {}", name_of(c.kind), c.stages,
                               order == nn::BackwardOrder::kSplit ? "split" : "fused"));
      const Schedule schedule =
          make_schedule(c.kind, {c.stages, kMicrobatches, chunks},
                        order == nn::BackwardOrder::kSplit ? Backward::kSplit : Backward::kFused);
      const StepResult found = computed(model, schedule, c.cuts, order);
      EXPECT_EQ(found.gradients, expected.gradients);
      EXPECT_EQ(found.losses, expected.losses);
      EXPECT_EQ(found.evaluated, expected.losses);
    }
  }
}

}  // namespace
}  // namespace strata::pipeline
