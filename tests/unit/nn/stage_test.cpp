#include "strata/nn/stage.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"

#include "stage/gradient_plan.hpp"
#include "stage_bench.hpp"

namespace strata::nn::test::stage_test {
namespace {

constexpr std::int64_t kMicrobatch = 4;
constexpr std::int64_t kInputs = 6;
constexpr std::int64_t kOutputs = 3;

Model small_model() {
  return Model({.layers = {"flatten", "dense 9 relu", "dropout 0.3", "layer_norm", "dense 5",
                           "gelu", "dense 3"},
                .input_shape = {2, 3},
                .outputs = kOutputs,
                .seed = 8});
}

TEST(AssignOffsets, LooksOnlyAtWhatIsInUseMeanwhile) {
  // All pairs would take longer than a test may.
  constexpr std::int64_t kIntervals = 1'000'000;
  std::vector<Interval> intervals;
  for (std::int64_t i = 0; i < kIntervals; ++i) {
    intervals.push_back({.bytes = 64 * (1 + i % 2), .begin = i, .end = i + 1});
  }
  const std::vector<std::int64_t> offsets = assign_offsets(intervals);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    ASSERT_EQ(offsets[i], i % 2 == 0 ? 128 : 0) << i;
  }
}

TEST(Stage, SendsShortcutInputsToTheNextStage) {
  const Model model({.layers = {"conv 4 1", "residual", "conv 4 1", "tanh", "shortcut", "conv 4 1",
                                "end", "flatten", "dense 3"},
                     .input_shape = {2, 1, 1},
                     .outputs = kOutputs,
                     .seed = 8});
  using Tensors = std::vector<std::int64_t>;
  EXPECT_EQ(model.boundary_tensors(0), (Tensors{kModelInput}));
  EXPECT_EQ(model.boundary_tensors(1), (Tensors{0}));
  EXPECT_EQ(model.boundary_tensors(2), (Tensors{0, 1}));
  EXPECT_EQ(model.boundary_tensors(3), (Tensors{0, 2}));
  EXPECT_EQ(model.boundary_tensors(4), (Tensors{2, 3}));
  EXPECT_EQ(model.boundary_tensors(5), (Tensors{4}));
  // A view is what it is a view of.
  EXPECT_EQ(model.boundary_tensors(6), (Tensors{4}));
  EXPECT_EQ(model.boundary_tensors(7), (Tensors{6}));
}

TEST(Stage, AddsTheGradientsOfLaterMicrobatches) {
  const Model model(
      {.layers = {"dense 3"}, .input_shape = {kInputs}, .outputs = kOutputs, .seed = 1});
  StageBench<double> bench(model, spec_of<double>({0, 1}, kMicrobatch));
  ArenaSink<double> once(bench.layout().elements);
  ArenaSink<double> twice(bench.layout().elements);
  const std::vector<double> sample = numbers<double>(kMicrobatch * kInputs, 5);
  const ConstTensorView input{std::span(sample), Shape{kMicrobatch, kInputs}};
  const std::vector<double> gradient = numbers<double>(kMicrobatch * kOutputs, 6);
  for (std::int64_t m = 0; m < 2; ++m) {
    bench.stage().forward(Alone(m, input, 0), Mode::kTraining);
    std::copy(gradient.begin(), gradient.end(),
              bench.stage().output_gradients_of(m).front().host<double>().begin());
    bench.stage().backward_input(Alone(m, input, 0), twice);
    if (m == 0) {
      bench.stage().backward_weight(Alone(m, input, 0), once);
    }
    bench.stage().backward_weight(Alone(m, input, 0), twice);
  }
  for (const PlacedParameter& placed : bench.layout().parameters) {
    for (std::int64_t i = 0; i < placed.spec.shape.count(); ++i) {
      const auto at = static_cast<std::size_t>(placed.offset + i);
      EXPECT_DOUBLE_EQ(twice.gradients()[at], 2.0 * once.gradients()[at]);
    }
  }
}

TEST(Stage, DropsOutWhileTrainingOnlyAndBySampleNotByMicrobatch) {
  const Model model({.layers = {"dropout 0.5"}, .input_shape = {50}, .outputs = 50, .seed = 1});
  StageBench<float> bench(model, spec_of<float>({0, 1}, 2));
  const std::vector<float> ones(100, 1.0F);
  const ConstTensorView input{std::span(ones), Shape{2, 50}};
  const auto output = [&](std::int64_t first_row, Mode mode) {
    bench.stage().forward(Alone(0, input, first_row), mode);
    const auto values =
        bench.stage().outputs_of(Alone(0, input, 0).microbatch).front().host<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  EXPECT_EQ(output(0, Mode::kEvaluation), ones);
  const std::vector<float> rows01 = output(0, Mode::kTraining);
  const std::vector<float> rows12 = output(1, Mode::kTraining);
  EXPECT_TRUE(std::equal(rows01.begin() + 50, rows01.end(), rows12.begin()));
  EXPECT_NE(rows01, rows12);
  EXPECT_EQ(output(0, Mode::kTraining), rows01);
}

/// Weights that arrive in two parts, before layers 0 and 3. The first part is overwritten when the
/// second arrives, as the layers that read it have been computed by then.
class TwoParts final : public WeightSource {
 public:
  explicit TwoParts(StageBench<float>& bench) : bench_(bench) {
    for (const PlacedParameter& placed : bench.layout().parameters) {
      const std::span<float> weight = bench.weight(placed);
      values_.emplace_back(weight.begin(), weight.end());
      std::ranges::fill(weight, std::numeric_limits<float>::quiet_NaN());
    }
  }

  bool waits_before(std::int64_t layer) const override { return layer == 0 || layer == kCut; }
  bool await(std::int64_t layer) override {
    awaited.push_back(layer);
    const std::vector<PlacedParameter>& parameters = bench_.layout().parameters;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const bool arrives = (parameters[p].spec.layer >= kCut) == (layer >= kCut);
      const std::span<float> weight = bench_.weight(parameters[p]);
      std::ranges::fill(weight, std::numeric_limits<float>::quiet_NaN());
      std::ranges::copy_n(values_[p].begin(), arrives ? std::ssize(weight) : 0, weight.begin());
    }
    return true;
  }

  std::vector<std::int64_t> awaited;

 private:
  static constexpr std::int64_t kCut = 3;

  StageBench<float>& bench_;
  std::vector<std::vector<float>> values_;
};

TEST(Stage, ALayerWaitsForItsWeightsInTheFirstForwardPassOfAStep) {
  const Model model = small_model();
  StageSpec spec = spec_of<float>({0, model.layer_count()}, kMicrobatch);
  const std::vector<float> sample = numbers<float>(kMicrobatch * kInputs, 1);
  const ConstTensorView input{std::span(sample),
                              local_shape(model.layer(0).input(), {kMicrobatch})};
  StageBench<float> bench(model, spec);
  StageBench<float> waiting(model, spec);
  TwoParts source(waiting);
  waiting.stage().set_weight_source(&source);
  for (const Mode mode : {Mode::kTraining, Mode::kEvaluation}) {
    const Alone first(0, input, 0);
    bench.stage().forward(first, mode);
    waiting.stage().forward(first, mode);
    const auto output = [&](StageBench<float>& of) {
      const std::span<const float> values =
          of.stage().outputs_of(first.microbatch).front().host<float>();
      return std::vector<float>(values.begin(), values.end());
    };
    EXPECT_EQ(output(waiting), output(bench));
    waiting.stage().forward(Alone(1, input, 0), mode);
    EXPECT_EQ(source.awaited, (std::vector<std::int64_t>{2, model.layer_count() - 1}));
    source.awaited.clear();
  }
}

TEST(Stage, MemoryIsWhatTheTensorsTake) {
  const Model model = small_model();
  const auto line = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  const std::int64_t m = kMicrobatch;
  StageSpec spec = spec_of<float>({2, 5}, m);
  spec.slots = {.activations = 3, .inputs = 2, .gradients = 2};
  // Of layers 2 to 4: the dropout's output and mask, the norm's output, mean and rstd, the output
  // of the dense layer.
  const std::int64_t activations =
      line(m * 9 * 4) + line(m * 9) + line(m * 9 * 4) + 2 * line(m * 4) + line(m * 5 * 4);
  const std::int64_t gradients = 3 * line(m * 9 * 4) + line(m * 5 * 4);
  const auto bytes_of = [&](const StageSpec& of, const std::string& name) {
    for (const MemoryItem& item : Stage::memory(model, std::span(&of, 1))) {
      if (item.name == name) {
        return item.bytes;
      }
    }
    ADD_FAILURE() << name;
    return std::int64_t{0};
  };
  EXPECT_EQ(bytes_of(spec, "activations"), 3 * activations);
  EXPECT_EQ(bytes_of(spec, "recomputed activations"), 0);
  EXPECT_EQ(bytes_of(spec, "activation receive buffers"), 2 * line(m * 9 * 4));
  EXPECT_EQ(bytes_of(spec, "activation gradients"), 2 * gradients);
  EXPECT_EQ(bytes_of(spec, "shared gradient buffers"), 0);
  // Fused, only what crosses the stage's ends has a buffer for each slot.
  spec.order = BackwardOrder::kFused;
  EXPECT_EQ(bytes_of(spec, "activation gradients"), 2 * (line(m * 9 * 4) + line(m * 5 * 4)));
  EXPECT_EQ(bytes_of(spec, "shared gradient buffers"), 2 * line(m * 9 * 4));
  // Views take no memory of their own; nothing leads gradients back beyond the first stage.
  const StageSpec first = spec_of<double>({0, 2}, m);
  EXPECT_EQ(bytes_of(first, "activations"), line(m * 9 * 8));
  EXPECT_EQ(bytes_of(first, "activation gradients"), line(m * 9 * 8));
  // Losses are the last stage's, for every slot of every lane.
  EXPECT_EQ(bytes_of(first, "per-step losses"), 0);
  StageSpec last = spec_of<float>({5, 7}, m);
  last.slots.losses = 5;
  last.pass.concurrent_lanes = 3;
  EXPECT_EQ(bytes_of(last, "per-step losses"), line(15 * 8 * ops::kLossElements));
}

TEST(Stage, ReportsPerStepLossesInOrderOfMicrobatches) {
  const Model model = small_model();
  StageSpec spec = spec_of<float>({2, 7}, kMicrobatch);
  spec.slots.losses = 3;
  StageBench<float> bench(model, spec);
  Stage& stage = bench.stage();
  std::vector<std::int64_t> labels{2, 0, 1, 1};
  const ConstTensorView targets{std::span(labels), Shape{kMicrobatch}};
  const auto run = [&](std::int64_t number) {
    const Alone one(number, {}, 0);
    const std::span<float> input = stage.inputs_of(number).front().host<float>();
    const std::vector<float> values =
        numbers<float>(std::ssize(input), static_cast<std::uint64_t>(number));
    std::copy(values.begin(), values.end(), input.begin());
    stage.forward(one, Mode::kEvaluation);
    // Fewer samples count in each, so that no two losses are the same.
    stage.loss(one.microbatch, targets, kMicrobatch - number, 1.0, Mode::kEvaluation);
  };
  for (const std::int64_t number : {0, 1, 2}) {
    run(number);
  }
  const std::vector<MicrobatchLoss> losses = stage.losses();
  ASSERT_EQ(losses.size(), 3U);
  for (const std::int64_t number : {2, 0, 1}) {
    run(number);
  }
  const std::vector<MicrobatchLoss> again = stage.losses();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_GT(losses[i].loss, 0.0);
    EXPECT_EQ(losses[i].loss, again[i].loss);
    EXPECT_NE(losses[i].loss, losses[(i + 1) % losses.size()].loss);
  }
  EXPECT_TRUE(
      StageBench<float>(model, spec_of<float>({0, 2}, kMicrobatch)).stage().losses().empty());

  // A bad target is an error of whoever asks.
  labels[0] = 5;
  EXPECT_NO_THROW(run(1));
  try {
    static_cast<void>(stage.losses());
    FAIL() << "a bad target was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_THAT(error.what(), testing::HasSubstr("row 0 of a microbatch has the target 5"));
    EXPECT_THAT(error.what(), testing::HasSubstr("0 to 2"));
  }
}

TEST(Stage, SlotsAreDisjointAndReused) {
  const Model model = small_model();
  StageSpec spec = spec_of<float>({2, 5}, kMicrobatch);
  spec.slots = {.activations = 3, .inputs = 2, .gradients = 2};
  StageBench<float> bench(model, spec);
  const Stage& stage = bench.stage();
  const std::int64_t bytes = stage.inputs_of(0).front().bytes();
  EXPECT_GE(std::abs(stage.inputs_of(1).front().raw() - stage.inputs_of(0).front().raw()), bytes);
  EXPECT_EQ(stage.inputs_of(2).front().raw(), stage.inputs_of(0).front().raw());
  EXPECT_NE(stage.outputs_of(Alone(1, {}, 0).microbatch).front().raw(),
            stage.outputs_of(Alone(0, {}, 0).microbatch).front().raw());
  EXPECT_NE(stage.outputs_of(Alone(2, {}, 0).microbatch).front().raw(),
            stage.outputs_of(Alone(0, {}, 0).microbatch).front().raw());
  EXPECT_EQ(stage.outputs_of(Alone(3, {}, 0).microbatch).front().raw(),
            stage.outputs_of(Alone(0, {}, 0).microbatch).front().raw());
  EXPECT_EQ(stage.output_gradients_of(2).front().raw(), stage.output_gradients_of(0).front().raw());
  EXPECT_NE(stage.output_gradients_of(1).front().raw(), stage.output_gradients_of(0).front().raw());
}

TEST(Stage, RefusesWeightsOfAnotherSizeOrDtypeAndOtherShards) {
  const Model model = small_model();
  ops::Context context(1);
  comm::ProgressEngine engine;
  comm::ShardGroup alone(1);
  const StageSpec spec = spec_of<float>({0, 2}, kMicrobatch);
  const auto make = [&](comm::ShardGroup& shards, const TensorView& weights) {
    const Stage stage(context, engine, shards, model, spec,
                      layout_of(model.parameters(), spec.layers), weights);
  };
  std::vector<float> few(1024);
  std::vector<float> weights(2048);
  std::vector<double> wide(2048);
  comm::ShardGroup two(2);
  EXPECT_NO_THROW(make(alone, TensorView(std::span(weights), Shape{2048})));
  EXPECT_THROW(make(alone, TensorView(std::span(few), Shape{1024})), std::logic_error);
  EXPECT_THROW(make(alone, TensorView(std::span(wide), Shape{2048})), std::logic_error);
  EXPECT_THROW(make(two, TensorView(std::span(weights), Shape{2048})), std::logic_error);
}

TEST(Stage, RefusesStatisticsOfAllLanesWithoutAGroup) {
  const Model model({.layers = {"batch_norm sync=on", "flatten", "dense 2"},
                     .input_shape = {2, 3, 2},
                     .outputs = 2,
                     .step_microbatches = 3,
                     .lanes = 3});
  StageSpec spec = spec_of<double>({0, 3}, 2);
  spec.pass.concurrent_lanes = 3;
  EXPECT_THROW(StageBench<double>(model, spec), std::logic_error);
}

}  // namespace
}  // namespace strata::nn::test::stage_test
