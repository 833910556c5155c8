#include "strata/pipeline/executor.hpp"

#include <cstdint>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace strata::pipeline
