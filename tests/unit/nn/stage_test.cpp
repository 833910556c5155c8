#include "strata/nn/stage.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"

#include "stage_bench.hpp"

namespace strata::nn::test {
namespace {

constexpr std::int64_t kMicrobatch = 4;
constexpr std::int64_t kMicrobatches = 3;
constexpr std::int64_t kInputs = 6;
constexpr std::int64_t kOutputs = 3;

Model small_model() {
  return Model({.layers = {"flatten", "dense 9 relu", "dropout 0.3", "layer_norm", "dense 5",
                           "gelu", "dense 3"},
                .input_shape = {2, 3},
                .outputs = kOutputs,
                .seed = 8});
}

/// Losses and weight gradients, by parameter name, of three microbatches through the stages of a
/// split, messages between them copied by hand.
struct Pass {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> gradients;
  friend bool operator==(const Pass&, const Pass&) = default;
};

template <typename From, typename To>
void copy_all(const std::vector<From>& from, const std::vector<To>& to) {
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    device::copy_tensor(from[i], to[i]);
  }
}

Pass run_through(const Model& model, const std::vector<grid::Range>& split,
                 BackwardOrder order = BackwardOrder::kSplit) {
  std::vector<std::unique_ptr<StageBench<float>>> benches;
  std::vector<std::unique_ptr<ArenaSink<float>>> sinks;
  for (const grid::Range& layers : split) {
    StageSpec spec = spec_of<float>(layers, kMicrobatch);
    spec.slots = {.activations = 2, .inputs = layers.begin == 0 ? 0 : 2, .gradients = 2};
    spec.order = order;
    benches.push_back(std::make_unique<StageBench<float>>(model, spec));
    sinks.push_back(std::make_unique<ArenaSink<float>>(benches.back()->layout().elements));
  }
  Pass result;
  const std::vector<std::int64_t> labels{2, 0, 1, 1};
  const ConstTensorView targets{std::span(labels), Shape{kMicrobatch}};
  for (std::int64_t m = 0; m < kMicrobatches; ++m) {
    const std::vector<float> sample =
        numbers<float>(kMicrobatch * model.input_shape().count(), static_cast<std::uint64_t>(m));
    const Alone one(m, {std::span(sample), local_shape(model.layer(0).input(), {kMicrobatch})},
                    m * kMicrobatch);
    for (std::size_t s = 0; s < benches.size(); ++s) {
      Stage& stage = benches[s]->stage();
      stage.forward(one, Mode::kTraining);
      if (s + 1 < benches.size()) {
        copy_all(stage.outputs_of(one.microbatch), benches[s + 1]->stage().inputs_of(m));
      } else {
        stage.loss(one.microbatch, targets, kMicrobatch, 0.25, Mode::kTraining);
        result.losses.push_back(stage.losses().front().loss);
      }
    }
    for (std::size_t s = benches.size(); s-- > 0;) {
      Stage& stage = benches[s]->stage();
      stage.backward_input(one, *sinks[s]);
      if (s > 0) {
        copy_all(stage.input_gradients_of(m), benches[s - 1]->stage().output_gradients_of(m));
      }
      stage.backward_weight(one, *sinks[s]);
    }
  }
  for (std::size_t s = 0; s < benches.size(); ++s) {
    for (const PlacedParameter& placed : benches[s]->layout().parameters) {
      const auto begin = sinks[s]->gradients().begin() + placed.offset;
      result.gradients[placed.spec.name] = {begin, begin + placed.spec.shape.count()};
    }
  }
  return result;
}

void expect_bits_of_one_stage(const Model& model) {
  const std::int64_t layers = model.layer_count();
  const Pass whole = run_through(model, {{0, layers}});
  ASSERT_EQ(whole.gradients.size(), model.parameters().size());
  EXPECT_TRUE(run_through(model, {{0, layers}}, BackwardOrder::kFused) == whole) << "fused";
  for (std::int64_t cut = 1; cut < layers; ++cut) {
    EXPECT_TRUE(run_through(model, {{0, cut}, {cut, layers}}) == whole) << "cut at " << cut;
  }
  std::vector<grid::Range> each;
  for (std::int64_t i = 0; i < layers; ++i) {
    each.push_back({i, i + 1});
  }
  EXPECT_TRUE(run_through(model, each) == whole) << "a stage a layer";
  EXPECT_TRUE(run_through(model, each, BackwardOrder::kFused) == whole) << "fused, a stage a layer";
}

TEST(Stage, ChainedStagesGiveTheBitsOfOne) {
  expect_bits_of_one_stage(small_model());
}

TEST(Stage, ChainedStagesGiveTheBitsOfOneWhereTheyCutResidualBlocks) {
  // Three layers read what the first one gives; tanh and a sum read one tensor, as do conv and sum.
  expect_bits_of_one_stage(Model({.layers = {"conv 4 3 padding=same",
                                             "residual",
                                             "residual",
                                             "conv 4 3 padding=same",
                                             "batch_norm relu",
                                             "shortcut",
                                             "conv 4 1",
                                             "end relu",
                                             "residual",
                                             "tanh",
                                             "end",
                                             "shortcut",
                                             "batch_norm",
                                             "end",
                                             "residual",
                                             "conv 6 1 stride=2",
                                             "shortcut",
                                             "conv 6 3 padding=same stride=2",
                                             "tanh",
                                             "end relu",
                                             "flatten",
                                             "residual",
                                             "dense 54",
                                             "end",
                                             "dense 3"},
                                  .input_shape = {2, 6, 6},
                                  .outputs = kOutputs,
                                  .seed = 8}));
}

TEST(Stage, ChainedStagesGiveTheBitsOfOneWhereBlocksReadTheModelsInput) {
  // The input goes to later stages beside what layers give, but no gradient of it comes back. Two
  // sums and both ways of a block read it.
  expect_bits_of_one_stage(
      Model({.layers = {"residual", "residual", "conv 2 3 padding=same", "end", "batch_norm relu",
                        "end relu", "residual", "conv 3 1", "shortcut", "conv 3 3 padding=same",
                        "end", "flatten", "dense 3"},
             .input_shape = {2, 5, 4},
             .outputs = kOutputs,
             .seed = 8}));
  expect_bits_of_one_stage(
      Model({.layers = {"residual", "conv 3 1", "batch_norm", "shortcut", "conv 3 3 padding=same",
                        "tanh", "end", "flatten", "dense 3"},
             .input_shape = {2, 5, 4},
             .outputs = kOutputs,
             .seed = 8}));
}

TEST(Stage, ChainedStagesGiveTheBitsOfOneWhereBlocksReadAViewOfTheModelsInput) {
  expect_bits_of_one_stage(
      Model({.layers = {"flatten", "residual", "dense 9 relu", "dense 6", "end relu", "residual",
                        "dense 4", "shortcut", "dense 4", "layer_norm", "end", "dense 3"},
             .input_shape = {2, 3},
             .outputs = kOutputs,
             .seed = 8}));
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
  const std::vector<ops::LossSums> losses = stage.losses();
  ASSERT_EQ(losses.size(), 3U);
  for (const std::int64_t number : {2, 0, 1}) {
    run(number);
  }
  const std::vector<ops::LossSums> again = stage.losses();
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

}  // namespace
}  // namespace strata::nn::test
