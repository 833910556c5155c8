// Every layer's backward passes, run through a stage in f64, against central differences.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "layer_gradients.hpp"

namespace strata::nn::test::gradient_test {
namespace {

class LayerGradients : public testing::TestWithParam<GradientCase> {};

TEST_P(LayerGradients, AgreeWithDifferences) {
  expect_layer_gradients(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Layers, LayerGradients,
    testing::Values(GradientCase{"dense", {"dense 4"}, Shape{6}, 4},
                    GradientCase{"dense_relu", {"dense 4 relu"}, Shape{6}, 4},
                    GradientCase{"dense_without_bias", {"dense 4 bias=off"}, Shape{6}, 4},
                    GradientCase{"dense_on_rows", {"dense 4 relu", "flatten"}, Shape{3, 5}, 12},
                    GradientCase{"relu", {"relu"}, Shape{7}, 7},
                    GradientCase{"gelu", {"gelu"}, Shape{7}, 7},
                    GradientCase{"gelu_erf", {"gelu_erf"}, Shape{7}, 7},
                    GradientCase{"tanh", {"tanh"}, Shape{7}, 7},
                    GradientCase{"sigmoid", {"sigmoid"}, Shape{7}, 7},
                    GradientCase{"softmax", {"softmax"}, Shape{7}, 7},
                    GradientCase{"softmax_on_rows", {"softmax", "flatten"}, Shape{2, 4}, 8},
                    GradientCase{"layer_norm", {"layer_norm"}, Shape{9}, 9},
                    GradientCase{"layer_norm_epsilon", {"layer_norm epsilon=0.1"}, Shape{9}, 9},
                    GradientCase{"layer_norm_on_rows", {"layer_norm", "flatten"}, Shape{3, 4}, 12},
                    GradientCase{"dropout", {"dropout 0.4"}, Shape{11}, 11},
                    GradientCase{"dropout_on_rows", {"dropout 0.4", "flatten"}, Shape{3, 4}, 12},
                    GradientCase{"begins_with_flatten", {"flatten", "dense 4"}, Shape{2, 3}, 4},
                    GradientCase{"ends_with_flatten", {"dense 4", "flatten"}, Shape{2, 3}, 8},
                    GradientCase{"flatten_alone", {"flatten"}, Shape{2, 3}, 6},
                    GradientCase{"flattens_twice", {"flatten", "tanh", "flatten"}, Shape{2, 3}, 6},
                    GradientCase{"a_network",
                                 {"dense 7 relu", "layer_norm", "dropout 0.2", "flatten", "dense 6",
                                  "gelu", "dense 3"},
                                 Shape{2, 4},
                                 3}),
    [](const auto& test) { return test.param.name; });

struct LossCase {
  const char* name;
  LossKind kind = LossKind::kCrossEntropy;
  ops::LossTerms terms = {};
  double preference_beta = 0.0;
};

class LossGradients : public testing::TestWithParam<LossCase> {};

// A first stage has no input gradient.
TEST_P(LossGradients, AgreeWithDifferences) {
  const bool classes = GetParam().kind == LossKind::kCrossEntropy;
  const Model model({.layers = {"flatten", "dense 6 relu", "dropout 0.3", "dense 4"},
                     .loss = {.kind = GetParam().kind,
                              .terms = GetParam().terms,
                              .preference_beta = GetParam().preference_beta},
                     .input_shape = {2, 3},
                     .outputs = 4,
                     .seed = 4});
  StageBench<double> bench(model, spec_of<double>({0, 4}, kMicrobatch));
  const std::vector<double> inputs = numbers<double>(kMicrobatch * 6, 1);
  const ConstTensorView input{std::span(inputs), Shape{kMicrobatch, 2, 3}};
  const std::vector<std::int64_t> labels{3, 0, 1, 1, 2};
  const std::vector<double> values = numbers<double>(kMicrobatch * 4, 2);
  const ConstTensorView targets = classes
                                      ? ConstTensorView{std::span(labels), Shape{kMicrobatch}}
                                      : ConstTensorView{std::span(values), Shape{kMicrobatch, 4}};
  // Of pairs, answers of one token, of which the other one does not count.
  const std::vector<std::uint32_t> starts{0, 1, 0, 0, 1};
  const std::vector<double> references = numbers<double>(kMicrobatch, 3);
  const auto with_pairs = [&](Alone alone) {
    alone.microbatch.places.document_starts = {std::span(starts), Shape{kMicrobatch, 1}};
    alone.microbatch.references = {std::span(references), Shape{kMicrobatch}};
    return alone;
  };
  ArenaSink<double> sink(bench.layout().elements);
  // Terms of the loss are training's alone.
  expect_loss_gradients(bench, sink, input, targets, kMicrobatch,
                        GetParam().terms.any() ? Mode::kTraining : Mode::kEvaluation, with_pairs);
  EXPECT_TRUE(bench.stage().input_gradients_of(0).empty());
  EXPECT_EQ(sink.done(), (std::vector<std::int64_t>{3, 2, 1, 0}));
  const auto loss = [&](Mode mode) {
    bench.stage().forward(Alone(0, input, kFirstRow), Mode::kTraining);
    bench.stage().loss(with_pairs(Alone(0, input, 0)).microbatch, targets, kMicrobatch, 1.0, mode);
    return bench.stage().losses().front().loss;
  };
  const double added = loss(Mode::kTraining) - loss(Mode::kEvaluation);
  EXPECT_EQ(GetParam().terms.any(), std::abs(added) > 1e-9) << added;
}

INSTANTIATE_TEST_SUITE_P(Losses, LossGradients,
                         testing::Values(LossCase{"cross_entropy"},
                                         LossCase{"mean_squared_error",
                                                  LossKind::kMeanSquaredError},
                                         LossCase{.name = "label_smoothing", .terms = {0.2, 0.0}},
                                         LossCase{.name = "z_loss", .terms = {0.0, 0.3}},
                                         LossCase{.name = "both", .terms = {0.1, 0.05}},
                                         LossCase{.name = "preference", .preference_beta = 0.7}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace strata::nn::test::gradient_test
