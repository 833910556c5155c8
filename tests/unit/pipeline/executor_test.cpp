#include "strata/pipeline/executor.hpp"

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/clock.hpp"
#include "strata/pipeline/simulator.hpp"

#include "emulated_device.hpp"
#include "in_process.hpp"
#include "stage_bench.hpp"

namespace strata::pipeline::executor_test {
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

TEST(Executor, AnEmulatedStageTakesItsTimes) {
  const nn::Model model({.layers = {"dense 3 relu", "dense 3"}, .input_shape = {2}, .outputs = 3});
  comm::run_in_process_ranks(1, [&](comm::Communicator& world) {
    const Schedule schedule = make_schedule(ScheduleKind::kGpipe, {1, 2});
    nn::StageSpec spec = nn::test::spec_of<float>({0, model.layer_count()}, 2);
    spec.slots = slots_for(schedule, {});
    nn::test::StageBench<float> bench(model, spec, comm::ShardGroup(1));
    nn::test::ArenaSink<float> sink(bench.layout().elements);
    Samples samples;
    comm::ProgressEngine engine;
    Executor executor({&bench.stage()}, world, engine);
    const ChunkTimes times{0.004, 0.002, 0.003};
    const double simulated = simulate(schedule, {.times = {{times}}}).step_seconds;
    for (const auto order : {nn::BackwardOrder::kFused, nn::BackwardOrder::kSplit}) {
      test::EmulatedDevice device({times}, order, engine);
      executor.set_observer([&](const Action& action, double begin, double end) {
        device.after(action, begin, end);
      });
      for (int step = 0; step < 2; ++step) {
        const double begin = now_seconds();
        static_cast<void>(executor.train(schedule, samples, 1.0, sink));
        EXPECT_GE(now_seconds() - begin, simulated);
      }
    }
  });
}

}  // namespace
}  // namespace strata::pipeline::executor_test
