// What a model with transformer layers or split layers says where it cannot be.
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/nn/model.hpp"

#include "error_of.hpp"

namespace strata::nn::model_errors_test {
namespace {

using Words = std::vector<std::string>;

ModelOptions numbers(std::vector<std::string> layers, std::int64_t shards) {
  return {.layers = std::move(layers), .input_shape = Shape{6}, .outputs = 8, .shards = shards};
}

/// Samples of 10 tokens of 50 ids.
ModelOptions tokens(std::vector<std::string> layers, std::int64_t shards = 1) {
  return {.layers = std::move(layers),
          .input_shape = Shape{10},
          .outputs = 50,
          .input_kind = InputKind::kTokenIds,
          .shards = shards};
}

/// The refusal has each of the words.
void expect_words(const ModelOptions& options, const Words& words) {
  const std::string text =
      strata::test::error_of([&] { const Model model(options); }, ExitCode::kUsage);
  for (const std::string& word : words) {
    EXPECT_THAT(text, testing::HasSubstr(word));
  }
}

TEST(ModelErrors, OfSplitsThatDoNotMeet) {
  const std::string column = "dense 8 parallel=column";
  expect_words(numbers({column, "dense 8"}, 2),
               {"\"dense 8\"", "split by feature", "parallel=row"});
  expect_words(numbers({column, "layer_norm", "dense 8"}, 2),
               {"\"layer_norm\"", "split by feature", "parallel=row"});
  expect_words(numbers({column, "rms_norm", "dense 8"}, 2), {"\"rms_norm\"", "split by feature"});
  for (const char* line : {"softmax", "mlp 12"}) {
    expect_words(numbers({column, line, "dense 8 parallel=row"}, 2),
                 {std::string("\"") + line, "split by feature", "parallel=row"});
  }
  expect_words(numbers({column, "flatten", "dense 8"}, 2),
               {"\"flatten\"", "split over the tensor ranks"});
  expect_words(numbers({"dense 8 parallel=row"}, 2),
               {"\"dense 8 parallel=row\"", "parallel=column", "its input is whole"});
  expect_words(numbers({column, "gelu", "dense 8 parallel=column"}, 2),
               {"split by feature", "give parallel=row"});
  ModelOptions regression = numbers({column}, 2);
  regression.loss.kind = LossKind::kMeanSquaredError;
  expect_words(regression, {"\"" + column + "\"", "mean_squared_error", "whole", "parallel=row"});
}

TEST(ModelErrors, OfWhatShardsDoNotDivide) {
  expect_words(numbers({"dense 6 parallel=column", "dense 8 parallel=row"}, 4),
               {"6 outputs", "numerics.shards = 4", "by default parallel.tensor",
                "divides 6, such as 3 or 6"});
  expect_words(tokens({"embedding 8", "attention 2", "head"}, 4),
               {"2 heads", "numerics.shards = 4", "divides 2, such as 2"});
  for (const auto& [attention, shards] : {std::pair{"attention 6 kv_heads=2", 4},
                                          {"attention 6 kv_heads=2", 3},
                                          {"attention 6 kv_heads=1", 12},
                                          {"attention 4 kv_heads=2", 8}}) {
    expect_words(
        tokens({"embedding 24", attention, "head"}, shards),
        {"heads with", "key-value heads", fmt::format("numerics.shards = {}", shards),
         "divides the key-value heads, or a multiple of them that divides the heads: 1, "});
  }
  expect_words(
      tokens({"embedding 8", "attention 4 kv_heads=1 head_size=2 qk_norm=width", "head"}, 4),
      {"2 elements of keys", "numerics.shards = 4"});
  expect_words(tokens({"embedding 8", "mlp 30", "head"}, 4),
               {"30 hidden units", "numerics.shards = 4", "such as 3 or 5"});
  expect_words(tokens({"embedding 8", "head"}, 64),
               {"vocabulary of 50", "numerics.shards = 64", "parallel.tensor", "at most 50"});
}

TEST(ModelErrors, OfOptionsNextToOneThatIsNone) {
  expect_words(tokens({"embedding 8 positions=none position=16", "head"}),
               {"no option \"position\"", "the nearest is \"positions\""});
}

TEST(ModelErrors, OfHeads) {
  expect_words(tokens({"embedding 10", "attention 4", "head"}),
               {"width 10", "4 heads", "head_size="});
  expect_words(tokens({"embedding 8", "attention 16", "head"}),
               {"width 8", "16 heads", "head_size="});
  expect_words(tokens({"embedding 8", "attention 4 kv_heads=3", "head"}),
               {"4 heads", "3 key-value heads", "divides 4"});
  expect_words(tokens({"embedding 12", "attention 4 rotary=10000", "head"}),
               {"rotary", "a head has 3", "even"});
  expect_words(tokens({"embedding 8", "attention 4 rotary=-1", "head"}), {"rotary is -1", "10000"});
  for (const char* scaling : {"yarn:2",
                              "linear",
                              "linear:0.5",
                              "linear:x",
                              "llama3:8",
                              "llama3:8:4:1:8192",
                              "llama3:8:1:4:0.5",
                              "llama3:8:1:4:1e300",
                              "none:1",
                              "yarn:4:100:32",
                              "yarn:4:100:1:32",
                              "yarn:4:100:32:1:-1",
                              "yarn:4:100:32:1:1:1",
                              "longrope:4:100",
                              "longrope:4:100:1",
                              "longrope:4:100:1,2:1",
                              "longrope:4:100:1,:1,2",
                              "longrope:4:100:0:1",
                              "longrope:4:100:x:1",
                              "longrope:4:100:1:inf",
                              "longrope:4:1:1:1",
                              "longrope:0.5:100:1:1",
                              "longrope:4:100:1:1:-1",
                              "longrope:4:100:1:1:1:1"}) {
    expect_words(
        tokens({"embedding 8", fmt::format("attention 4 rotary=10000 rotary_scaling={}", scaling),
                "head"}),
        {fmt::format("rotary_scaling is \"{}\"", scaling), "linear:FACTOR"});
  }
  expect_words(tokens({"embedding 8", "attention 4 rotary_scaling=linear:2", "head"}),
               {"rotary=BASE"});
  for (const auto& [words, expected] : std::vector<std::pair<std::string, Words>>{
           {"rotary_share=0.5", {"rotary_share needs rotary", "rotary=BASE"}},
           {"rotary=0.5 rotary_scaling=yarn:4:32", {"rotary is 0.5", "above 1"}},
           {"rotary=10 rotary_scaling=longrope:4:100:1,2:1,2",
            {"rotary_scaling has 2 factors", "1 pairs", "give 1 short and 1 long"}},
           {"rotary=10 rotary_share=0", {"rotary_share is 0", "above 0"}},
           {"rotary=10 rotary_share=1.5", {"rotary_share is 1.5", "at most 1"}},
           {"rotary=10 head_size=10 rotary_share=0.5", {"the share", "has 5", "even number"}},
           {"scale=-1", {"scale is -1", "above 0"}},
           {"softcap=-2", {"softcap -2", "above 0"}},
           {"qk_norm=all", {"qk_norm is one of none, head, width"}},
           {"unit_offset=on", {"unit_offset=on is for RMS norms"}}}) {
    expect_words(tokens({"embedding 8", "attention 4 " + words, "head"}), expected);
  }
  expect_words(tokens({"embedding 8", "attention", "head"}), {"the number of heads"});
  expect_words(tokens({"embedding 8", "attention 0", "head"}),
               {"the number of heads", "it has \"0\""});
  expect_words(tokens({"embedding 8", "attention 4 kv_heads=0", "head"}), {"kv_heads is \"0\""});
}

TEST(ModelErrors, OfSublayers) {
  expect_words(tokens({"embedding 8", "mlp 12 silu", "head"}),
               {"gelu, gelu_erf, relu, swiglu, geglu", "not \"silu\""});
  expect_words(tokens({"embedding 8", "mlp", "head"}), {"the number of hidden units"});
  expect_words(tokens({"embedding 8", "mlp 12 dropout=1", "head"}), {"dropout is 1", "below 1"});
  expect_words(tokens({"embedding 8", "mlp 12 dropout=nan", "head"}), {"dropout is \"nan\""});
  expect_words(tokens({"embedding 8", "mlp 12 norm=batch", "head"}),
               {"norm is one of none, layer_norm, rms_norm", "batch"});
  expect_words(tokens({"embedding 8", "mlp 12 epsilon=-1", "head"}), {"epsilon", "-1"});
  expect_words(tokens({"embedding 8", "mlp 12 residual=maybe", "head"}),
               {"residual is one of off, on"});
  expect_words(tokens({"embedding 8", "attention 4 heads=2", "head"}),
               {"attention has no option \"heads\"", "nearest"});
  expect_words(numbers({"attention 2", "dense 8"}, 1), {"\"attention 2\"", "tokens x width"});
}

TEST(ModelErrors, OfParallelResiduals) {
  const std::string mlp = "mlp 12 parallel_residual=on";
  for (const Words& layers :
       {Words{"embedding 8", mlp, "head"}, Words{"embedding 8", "attention 4", mlp, mlp, "head"},
        Words{"embedding 8", "attention 4", "layer_norm", mlp, "head"}}) {
    expect_words(tokens(layers), {mlp, "right behind another"});
  }
  expect_words(tokens({"embedding 8", "attention 4", mlp + " residual=off", "head"}),
               {"parallel_residual=on adds what residual=off leaves out"});
}

TEST(ModelErrors, OfTheHead) {
  ModelOptions without = numbers({"head"}, 1);
  without.input_shape = Shape{3, 4};
  expect_words(without, {"\"head\"", "no embedding before it", "tied=off"});
  expect_words(tokens({"embedding 8", "head softcap=-1"}), {"softcap is -1", "above 0"});
  expect_words(tokens({"embedding 8", "dense 6", "head"}), {"50 x 8", "width 6", "tied=off"});
  expect_words(tokens({"embedding 8", "head tied=off vocabulary=40"}),
               {"vocabulary of 40", "data set, 50"});
  expect_words(tokens({"embedding 8", "layer_norm"}), {"\"layer_norm\"", "50 ids", "layer = head"});
  expect_words(tokens({"embedding 8", "dense 49"}), {"10 x 49", "50 ids", "layer = head"});
  expect_words(tokens({"embedding 8", "head", "dense 8 parallel=row", "head name=second"}),
               {"another head is tied", "tied=off"});
  ModelOptions shards = tokens({"embedding 8 vocabulary=64", "head tied=off vocabulary=50"});
  shards.shards = 60;
  expect_words(shards, {"vocabulary of 50", "numerics.shards = 60"});
}

TEST(ModelErrors, OfTheEmbedding) {
  expect_words(tokens({"embedding 8 scale=2 positions=10", "head"}),
               {"scale=", "learned positions are added"});
  expect_words(numbers({"embedding 8", "dense 8"}, 1),
               {"\"embedding 8\"", "not token ids", "--format=text"});
  expect_words(tokens({"embedding 8", "embedding 8", "head"}), {"not token ids", "first layer"});
  expect_words(tokens({"embedding 8 vocabulary=40", "head"}),
               {"vocabulary of 40", "data set, 50", "at least 50"});
  expect_words(tokens({"embedding 8 positions=9", "head"}),
               {"9 learned positions", "model.context is 10"});
  expect_words(tokens({"embedding", "head"}), {"the width of a token's vector"});
  expect_words(tokens({"embedding 8 dropout=1.5", "head"}), {"dropout is 1.5", "below 1"});
}

TEST(ModelErrors, OfTokenIdsWhereNumbersBelong) {
  for (const char* line : {"dense 8", "relu", "gelu", "gelu_erf", "softmax", "dropout 0.1",
                           "flatten", "layer_norm", "rms_norm", "mlp 12", "attention 2", "head"}) {
    expect_words(tokens({line, "head"}), {std::string("\"") + line, "token ids", "embedding 128"});
  }
}

TEST(ModelErrors, OfSequenceParallelismWithLayersThatNeedWholeSequences) {
  ModelOptions options = tokens({"embedding 8", "dense 8", "head"}, 2);
  options.token_rows = Placement::kTokens;
  expect_words(options, {"\"dense 8\"", "split by token", "parallel.sequence off"});
  options.layers = {"embedding 50"};
  expect_words(options, {"\"embedding 50\"", "layer = head"});
  options.layers = {"embedding 8", "dense 8 parallel=column", "head"};
  expect_words(options, {"\"dense 8 parallel=column\"", "split by token"});
  options.layers = {"embedding 8", "flatten", "head"};
  expect_words(options, {"\"flatten\"", "split over the tensor ranks"});
}

TEST(ModelErrors, OfNames) {
  expect_words(tokens({"embedding 8 name=a", "mlp 12 name=a", "head"}),
               {"\"mlp 12 name=a\"", "the name \"a\" is taken", "name="});
  // A sublayer's norm has parameters of its own.
  expect_words(tokens({"embedding 8", "layer_norm name=b.norm", "mlp 12 name=b", "head"}),
               {"\"b.norm.weight\"", "another name", "name="});
}

TEST(ModelErrors, AllowWhatOnlyLooksWrong) {
  // More positions than the context, a larger vocabulary than the data's, a dotted name.
  EXPECT_NO_THROW(Model(tokens(
      {"embedding 8 positions=20 vocabulary=64 name=a.b", "attention 4 kv_heads=2", "head"})));
  EXPECT_NO_THROW(Model(tokens({"embedding 10", "attention 4 head_size=3", "head"})));
  EXPECT_NO_THROW(Model(tokens({"embedding 10", "attention 3 head_size=3", "head"})));
  EXPECT_NO_THROW(Model(numbers({"dense 8 parallel=column"}, 8)));
}

}  // namespace
}  // namespace strata::nn::model_errors_test
