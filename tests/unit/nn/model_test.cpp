#include "strata/nn/model.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/nn/layer_trace.hpp"

#include "error_of.hpp"

namespace strata::nn::model_test {
namespace {

ModelOptions options_of(std::vector<std::string> layers, const Shape& input = Shape{6},
                        std::int64_t outputs = 3) {
  return {.layers = std::move(layers), .input_shape = input, .outputs = outputs};
}

const std::vector<std::string> kMnistLayers{"flatten", "dense 128 relu", "dropout 0.2", "dense 10"};

grid::StageSplit split_of(const Model& model, std::int64_t parts, const std::string& how) {
  return split_model(model, layer_costs(model), parts, how);
}

std::string refusal_of(const std::vector<std::string>& layers, const Shape& input = Shape{6}) {
  return strata::test::error_of([&] { const Model model(options_of(layers, input)); },
                                ExitCode::kUsage);
}

void expect_refusal(const std::string& line, const std::string& why) {
  EXPECT_EQ(refusal_of({line}), "model.layer \"" + line + "\": " + why);
}

TEST(LayerLine, NamesTheNearestKindAndAllKinds) {
  expect_refusal(
      "dennse 3",
      "there is no layer \"dennse\"; the nearest is \"dense\", and there are "
      "attention, avg_pool, batch_norm, conv, dense, dropout, embedding, flatten, gelu, gelu_erf, "
      "global_avg_pool, group_norm, head, layer_norm, max_pool, mlp, relu, residual, "
      "rms_norm, sigmoid, softmax, tanh, zero_channels, zero_pad");
}

TEST(LayerLine, NamesTheNearestOption) {
  expect_refusal("dense 3 biass=off", "dense has no option \"biass\"; the nearest is \"bias\"");
  expect_refusal("layer_norm eps=1e-3",
                 "layer_norm has no option \"eps\"; the nearest is \"epsilon\"");
}

TEST(LayerLine, RefusesAnOptionThatIsGivenTwice) {
  expect_refusal("dense 3 bias=off bias=on", "bias is given twice; keep one");
  expect_refusal("dense 3 bias=off relu bias=off", "bias is given twice; keep one");
}

TEST(LayerLine, SaysWhatAValueMustBe) {
  const std::string count =
      "it needs the number of outputs, a whole number from 1 to 2147483647, as its first "
      "value; it has ";
  expect_refusal("dense", count + "\"\"");
  expect_refusal("dense 0", count + "\"0\"");
  expect_refusal("dense -3", count + "\"-3\"");
  expect_refusal("dense 2147483648", count + "\"2147483648\"");
  expect_refusal("dense 2.5", count + "\"2.5\"");
  expect_refusal("dense 3 gelu",
                 "only relu can follow on the line of dense; give \"gelu\" a line of its "
                 "own");
  expect_refusal("dense 3 relu 4", "\"4\" is not understood");
  expect_refusal("dense 3 bias=maybe", "bias is one of off, on, not \"maybe\"");
  expect_refusal("dense 3 init=xavier",
                 "init is one of fan_in, glorot, he, normal, zeros, ones, not \"xavier\"");
  expect_refusal("dropout",
                 "it needs the probability, a finite number, as its first value; it has \"\"");
  expect_refusal("dropout 1", "the probability is 1, it must be at least 0 and below 1");
  expect_refusal("dropout -0.1", "the probability is -0.1, it must be at least 0 and below 1");
  expect_refusal("dropout nan",
                 "it needs the probability, a finite number, as its first value; it has \"nan\"");
  expect_refusal("layer_norm epsilon=0", "epsilon is 0, it must be above 0");
  for (const char* line : {"relu name=", "relu name=a/b", "relu name=.a", "relu name=a."}) {
    expect_refusal(line, "a name has at least one character, no '/', and no '.' at its ends");
  }
  expect_refusal("  ", "it names no layer");
}

TEST(Model, RefusesWhatIsNoNetworkForTheData) {
  EXPECT_EQ(refusal_of({}),
            "the model has no layers; give [model] at least one line such as \"layer = dense 10\"");
  EXPECT_EQ(refusal_of({"dense 4", "relu name=dense1", "dense 3"}),
            "model.layer \"relu name=dense1\": the name \"dense1\" is taken already; give another "
            "with name=");
  EXPECT_EQ(refusal_of({"dense 4"}),
            "the last layer \"dense 4\" gives 4 for a sample, but cross_entropy with this data set "
            "needs 3; end the model with \"layer = dense 3\"");
  EXPECT_EQ(refusal_of({"dense 3"}, Shape{2, 5}),
            "the last layer \"dense 3\" gives 2 x 3 for a sample, but cross_entropy with this data "
            "set needs 3; end the model with \"layer = dense 3\", and put \"layer = flatten\" "
            "before the first dense layer");
  EXPECT_EQ(refusal_of({"dense 3"}, Shape{}),
            "model.layer \"dense 3\": its input has no dimension to act on");
  EXPECT_EQ(refusal_of({"layer_norm"}, Shape{}),
            "model.layer \"layer_norm\": its input has no dimension to normalise");
}

TEST(Model, OfMnistHas101770Parameters) {
  const Model model(options_of(kMnistLayers, Shape{28, 28}, 10));
  EXPECT_EQ(model.parameter_count(), 101770);
  std::vector<std::string> names;
  for (const ParameterSpec& spec : model.parameters()) {
    names.push_back(spec.name + " " + spec.shape.text() + " @" + std::to_string(spec.layer));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"dense1.weight 128 x 784 @1", "dense1.bias 128 @1",
                                             "dense2.weight 10 x 128 @3", "dense2.bias 10 @3"}));
  EXPECT_EQ(model.output().shape, Shape{10});
}

TEST(Model, NamesLayersByKindAndNumberUnlessNamed) {
  const Model model(
      options_of({"dense 4 name=first", "relu", "dense 4", "relu", "dense 3 bias=off name=last"}));
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < model.layer_count(); ++i) {
    names.push_back(model.layer(i).name());
  }
  EXPECT_EQ(names[0], "first");
  EXPECT_EQ(names[1], "relu1");
  EXPECT_EQ(names[3], "relu2");
  EXPECT_EQ(names[4], "last");
  EXPECT_EQ(model.parameters().back().name, "last.weight");
  EXPECT_EQ(model.parameters().size(), 5U);
}

TEST(LayerCosts, FollowTheWork) {
  const Model model(options_of({"flatten", "dense 128 relu", "dense 10"}, Shape{28, 28}, 10));
  const std::vector<double> costs = layer_costs(model);
  EXPECT_EQ(costs[0], 0.0);
  // Two operations a weight forward and for each gradient, which the first layer's input has not,
  // and 16 for each element that the gradients of relu and bias move.
  EXPECT_EQ(costs[1], 4.0 * 784 * 128 + 16.0 * 4 * 128);
  EXPECT_GT(costs[2], 6.0 * 128 * 10);
  EXPECT_LT(costs[2], 6.0 * 128 * 10 + 16.0 * 4 * 10);
}

TEST(TrainingFlops, CountTheProductsOfOneSample) {
  struct Case {
    std::string adapters;
    std::string frozen;
    std::int64_t flops;
  };
  constexpr std::int64_t kTokens = 32;
  constexpr std::int64_t kQkv = 2 * kTokens * 64 * 192;
  constexpr std::int64_t kScores = 2 * kTokens * kTokens * 64;  // causal, with the values
  constexpr std::int64_t kAttention = kQkv + 2 * kTokens * 64 * 64 + kScores;
  constexpr std::int64_t kMlp = 2 * 2 * kTokens * 64 * 256;
  constexpr std::int64_t kHead = 2 * kTokens * 64 * 100;
  constexpr std::int64_t kAll = kAttention + kMlp + kHead;
  constexpr std::int64_t kAdapters = 2 * kTokens * 8 * (64 + 192 + 64 + 64 + 2 * (64 + 256));
  // The head has the embedding's table.
  for (const Case& c : {Case{"", "", 3 * kAll}, Case{"", "*qkv*", 3 * kAll - kQkv},
                        Case{"", "embedding*,*attention*", 3 * kAll - 2 * kAttention - kHead},
                        Case{" lora=8", "", 2 * (kAll + kAdapters) + kScores + kAdapters}}) {
    for (const std::int64_t shards : {1, 2}) {
      Model model(
          {.layers = {"embedding 64", "attention 4" + c.adapters, "mlp 256" + c.adapters, "head"},
           .input_shape = {kTokens},
           .outputs = 100,
           .input_kind = InputKind::kTokenIds,
           .shards = shards});
      if (!c.frozen.empty()) {
        model.freeze(NamePatterns(c.frozen));
      } else if (!c.adapters.empty()) {
        model.train_adapters_and(NamePatterns(""));
      }
      EXPECT_EQ(training_flops(model), static_cast<double>(c.flops)) << c.adapters << c.frozen;
    }
  }
}

TEST(TrainingFlops, OfJoinedLanesAreThoseOfOneSample) {
  ModelOptions options = options_of({"conv 4 3x3", "batch_norm", "flatten", "dense 3"}, {2, 6, 6});
  const double alone = training_flops(Model(options));
  options.lanes = 4;
  options.step_microbatches = 8;
  options.sync_batch_norm = Switch::kOn;
  EXPECT_EQ(training_flops(Model(options)), alone);
  EXPECT_EQ(alone, 3.0 * 2.0 * (4 * 4 * 4 * 2 * 9 + 3 * 4 * 4 * 4));
}

TEST(SplitModel, BalancesOrFollowsTheGivenLayers) {
  const Model model(options_of(kMnistLayers, Shape{28, 28}, 10));
  using Stages = std::vector<grid::Range>;
  EXPECT_EQ(split_of(model, 1, "auto").stages, (Stages{{0, 4}}));
  EXPECT_EQ(split_of(model, 2, "auto").stages, (Stages{{0, 2}, {2, 4}}));
  EXPECT_EQ(split_of(model, 2, "0, 3").stages, (Stages{{0, 3}, {3, 4}}));
  EXPECT_EQ(split_of(model, 3, "flatten1, dense1,dense2").stages, (Stages{{0, 1}, {1, 3}, {3, 4}}));
  EXPECT_EQ(split_of(model, 4, "auto").stages, (Stages{{0, 1}, {1, 2}, {2, 3}, {3, 4}}));
}

TEST(SplitModel, RefusesWhatIsNoSplit) {
  const Model model(options_of(kMnistLayers, Shape{28, 28}, 10));
  const auto refusal = [&](std::int64_t stages, const std::string& how) {
    return strata::test::error_of([&] { static_cast<void>(split_of(model, stages, how)); },
                                  ExitCode::kUsage);
  };
  EXPECT_EQ(refusal(5, "auto"),
            "parallel.pipeline is 5, but the model has 4 layers; a stage holds at least one, so "
            "use at most 4 stages");
  EXPECT_EQ(refusal(2, "0, dense7"),
            "parallel.split names the layer \"dense7\"; give a name from the model table or a "
            "number below 4");
  for (const char* how : {"0", "0, 1, 2", "1, 2", "0, 0", "2, 0", ","}) {
    EXPECT_EQ(refusal(2, how),
              "parallel.split = \"" + std::string(how) +
                  "\" must list the first layer of each of the 2 stages or chunks, "
                  "ascending and beginning with layer 0, or be \"auto\"");
  }
  EXPECT_EQ(refusal(2, "0, 4").find("parallel.split names the layer \"4\""), 0U);
  EXPECT_EQ(refusal(2, "-1, 2").find("parallel.split names the layer \"-1\""), 0U);
}

TEST(ModelTable, ListsLayersAndTotals) {
  const Model model(options_of(kMnistLayers, Shape{28, 28}, 10));
  const std::string table = model_table(model, split_of(model, 2, "auto"));
  EXPECT_NE(table.find("dense 128 relu  dense1"), std::string::npos) << table;
  EXPECT_NE(table.find("101,770 parameters; input 28 x 28; 2 stages"), std::string::npos) << table;
}

TEST(Model, FreezesParametersByName) {
  // 6 x 4 + 4, 4 x 4 + 4 and 4 x 3 + 3 parameters.
  Model model(options_of({"dense 4 relu name=a", "dense 4 name=b", "dense 3 name=c"}));
  EXPECT_EQ(model.parameter_count(), 28 + 20 + 15);
  EXPECT_EQ(model.trainable_count(), 28 + 20 + 15);
  EXPECT_EQ(model.first_changing_layer(), 0);
  model.freeze(NamePatterns("a.*,b.w*"));
  EXPECT_EQ(model.parameter_count(), 28 + 20 + 15);
  EXPECT_EQ(model.trainable_count(), 4 + 15);
  EXPECT_EQ(model.first_changing_layer(), 1);
  EXPECT_TRUE(model.is_frozen(0));
  EXPECT_FALSE(model.is_frozen(1));
  const std::string table = model_table(model, split_of(model, 1, "auto"));
  EXPECT_NE(table.find("63 parameters, 19 of them trainable;"), std::string::npos) << table;

  EXPECT_EQ(
      strata::test::error_of([&] { model.freeze(NamePatterns("c.wieght")); }, ExitCode::kUsage),
      "optimizer.frozen: no parameter is called \"c.wieght\"; the nearest is \"c.weight\". "
      "Give names, or patterns with * and ?, as in \"blocks.0.*\"");
  EXPECT_EQ(
      strata::test::error_of([&] { model.freeze(NamePatterns("*")); }, ExitCode::kUsage),
      "optimizer.frozen = \"*\" freezes all 6 parameters of the model, so there is nothing to "
      "train; leave some out");
}

TEST(Model, RunningAveragesGoOnInFrozenLayers) {
  Model model(options_of({"batch_norm name=norm", "flatten", "dense 3 name=c"}, Shape{2, 4, 4}));
  model.freeze(NamePatterns("norm.*"));
  EXPECT_TRUE(has_batch_norm(model));
  EXPECT_FALSE(model.is_frozen(0));
  EXPECT_EQ(model.first_changing_layer(), 0);
  EXPECT_EQ(model.trainable_count(), 32 * 3 + 3);
  EXPECT_EQ(model.parameter_count(), 32 * 3 + 3 + 4);
}

}  // namespace
}  // namespace strata::nn::model_test
