// What stages send each other is what crosses the cuts between them.
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/pipeline/executor.hpp"

#include "counting_communicator.hpp"
#include "in_process.hpp"
#include "stage_bench.hpp"

namespace strata::pipeline::traffic_test {
namespace {

constexpr std::int64_t kRows = 2;
constexpr std::int64_t kMicrobatches = 3;  // of a lane
constexpr std::int64_t kFloatBytes = 4;

/// Of each sample 2 x 3 x 2 values; layers 0 and 2 read them, layer 3 adds layers 1 and 2.
nn::Model model_with(std::int64_t lanes) {
  return nn::Model({.layers = {"residual", "conv 4 1", "batch_norm sync=on relu", "shortcut",
                               "conv 4 1", "end", "max_pool 3x1", "flatten", "dense 3"},
                    .input_shape = {2, 3, 2},
                    .outputs = 3,
                    .seed = 4,
                    .step_microbatches = kMicrobatches * lanes,
                    .lanes = lanes});
}

/// The same samples in every microbatch.
class Samples final : public MicrobatchSource {
 public:
  explicit Samples(const Shape& sample)
      : shape_(sample.prepended(kRows)), values_(nn::test::numbers<float>(shape_.count(), 1)) {}

  ConstTensorView inputs(std::int64_t /*m*/) override { return {std::span(values_), shape_}; }
  ConstTensorView targets(std::int64_t /*m*/) override {
    return {std::span(labels_), Shape{kRows}};
  }
  std::int64_t first_row(std::int64_t m) override { return m * kRows; }
  std::int64_t valid_rows(std::int64_t /*m*/) override { return kRows; }

 private:
  Shape shape_;
  std::vector<float> values_;
  std::vector<std::int64_t> labels_{2, 0};
};

/// What is sent for a sample.
struct Sent {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  friend bool operator==(const Sent&, const Sent&) = default;
};

void PrintTo(const Sent& sent, std::ostream* out) {
  *out << sent.tensors << " tensors of " << sent.elements << " elements";
}

void expect_sent(const comm::TracedMessages& counted, const Sent& expected,
                 std::int64_t microbatches) {
  EXPECT_EQ(counted.messages, microbatches * expected.tensors);
  EXPECT_EQ(counted.bytes,
            static_cast<double>(microbatches * kRows * expected.elements * kFloatBytes));
}

/// What crosses a cut before a layer forward, and backward.
struct Cut {
  std::int64_t layer = 0;
  Sent activations;
  Sent gradients;
};

const std::vector<Cut> kCuts{
    {.layer = 1, .activations = {2, 12 + 24}, .gradients = {1, 24}},
    {.layer = 2, .activations = {2, 12 + 24}, .gradients = {1, 24}},
    {.layer = 3, .activations = {2, 24 + 24}, .gradients = {2, 24 + 24}},
    {.layer = 4, .activations = {1, 24}, .gradients = {1, 24}},
    {.layer = 5, .activations = {1, 8}, .gradients = {1, 8}},
    {.layer = 6, .activations = {1, 8}, .gradients = {1, 8}},
};

/// Trains one step on the stages between cuts and counts what each sends.
void expect_crossings(const std::vector<Cut>& cuts, ScheduleKind kind, std::int64_t lanes) {
  const nn::Model model = model_with(lanes);
  const auto stages = std::ssize(cuts) + 1;
  const Schedule schedule = make_schedule(kind, {stages, kMicrobatches});
  comm::run_in_process_ranks(stages, [&](comm::Communicator& world) {
    SCOPED_TRACE(fmt::format("stage {} of {}, the first cut before layer {}, {}, {} lanes",
                             world.rank(), stages, cuts.front().layer, name_of(kind), lanes));
    const Cut* before =
        world.rank() == 0 ? nullptr : &cuts[static_cast<std::size_t>(world.rank() - 1)];
    const Cut* behind =
        world.rank() + 1 == stages ? nullptr : &cuts[static_cast<std::size_t>(world.rank())];
    nn::test::CountingCommunicator counting(world);
    comm::PartitionedGroup group(lanes);
    nn::StageSpec spec =
        nn::test::spec_of<float>({before == nullptr ? 0 : before->layer,
                                  behind == nullptr ? model.layer_count() : behind->layer},
                                 kRows);
    spec.slots = slots_for(schedule, {.stage = world.rank()});
    spec.pass.concurrent_lanes = lanes;
    nn::test::StageBench<float> bench(model, spec, comm::ShardGroup(1), &group);
    nn::test::ArenaSink<float> sink(bench.layout().elements);
    Samples samples(model.layer(0).input().shape);
    comm::ProgressEngine engine;
    static_cast<void>(
        Executor({&bench.stage()}, counting, engine).train(schedule, samples, 0.25, sink));
    EXPECT_EQ(std::ssize(bench.stage().losses()), behind == nullptr ? kMicrobatches * lanes : 0);
    expect_sent(counting.sent(comm::Tag::kActivation),
                behind == nullptr ? Sent() : behind->activations, kMicrobatches * lanes);
    expect_sent(counting.sent(comm::Tag::kGradient), before == nullptr ? Sent() : before->gradients,
                kMicrobatches * lanes);
    EXPECT_EQ(counting.sent().messages, counting.sent(comm::Tag::kActivation).messages +
                                            counting.sent(comm::Tag::kGradient).messages);
  });
}

TEST(StagesTraffic, IsWhatCrossesTheModel) {
  const nn::Model model = model_with(1);
  ASSERT_EQ(std::ssize(kCuts), model.layer_count() - 1);
  for (const Cut& cut : kCuts) {
    Sent activations;
    Sent gradients;
    for (const std::int64_t tensor : model.boundary_tensors(cut.layer)) {
      const std::int64_t elements = model.port_of(tensor).shape.count();
      activations.tensors += 1;
      activations.elements += elements;
      gradients.tensors += tensor == nn::kModelInput ? 0 : 1;
      gradients.elements += tensor == nn::kModelInput ? 0 : elements;
    }
    SCOPED_TRACE("cut before layer " + std::to_string(cut.layer));
    EXPECT_EQ(activations, cut.activations);
    EXPECT_EQ(gradients, cut.gradients);
  }
}

TEST(StagesTraffic, IsWhatTheStagesSend) {
  for (const ScheduleKind kind : {ScheduleKind::kGpipe, ScheduleKind::k1f1b, ScheduleKind::kZbH2}) {
    for (const std::int64_t lanes : {1, 2}) {
      for (const Cut& cut : kCuts) {
        expect_crossings({cut}, kind, lanes);
      }
      // The stages between pass on what none of their layers reads, and gradients of it.
      expect_crossings({kCuts[0], kCuts[1]}, kind, lanes);
      expect_crossings({kCuts[1], kCuts[2]}, kind, lanes);
      expect_crossings(kCuts, kind, lanes);
    }
  }
}

}  // namespace
}  // namespace strata::pipeline::traffic_test
