// Every layer's backward passes, run through a stage in f64, against central differences.
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stage_bench.hpp"

namespace strata::nn::test {
namespace {

constexpr std::int64_t kMicrobatch = 5;
constexpr std::int64_t kFirstRow = 1000;
constexpr double kTolerance = 1e-8;

/// |a - b| / |b| in the Euclidean norm, `b` by central differences of `loss` at `at`.
double error_against_differences(std::span<const double> a, std::span<double> at,
                                 const std::function<double()>& loss) {
  constexpr double kStep = 1e-5;
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double here = at[i];
    at[i] = here + kStep;
    const double above = loss();
    at[i] = here - kStep;
    const double below = loss();
    at[i] = here;
    const double expected = (above - below) / (2.0 * kStep);
    difference += (a[i] - expected) * (a[i] - expected);
    norm += expected * expected;
  }
  return std::sqrt(difference / norm);
}

struct Case {
  std::string name;
  /// The layers behind a first one, "relu", which another stage holds.
  std::vector<std::string> layers;
  Shape input;
  std::int64_t outputs;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class LayerGradients : public testing::TestWithParam<Case> {};

TEST_P(LayerGradients, AgreeWithDifferences) {
  const Case& c = GetParam();
  std::vector<std::string> layers{"relu name=before"};
  layers.insert(layers.end(), c.layers.begin(), c.layers.end());
  const Model model({.layers = layers, .input_shape = c.input, .outputs = c.outputs, .seed = 4});
  StageBench<double> bench(model, spec_of<double>({1, model.layer_count()}, kMicrobatch));
  Stage& stage = bench.stage();
  const std::span<double> input = stage.input_of(0).host<double>();
  const std::vector<double> start = numbers<double>(std::ssize(input), 1);
  std::copy(start.begin(), start.end(), input.begin());
  const std::vector<double> factors = numbers<double>(kMicrobatch * c.outputs, 2);

  const auto loss = [&] {
    stage.forward(0, stage.input_of(0), kFirstRow, Mode::kTraining);
    const std::span<const double> output = stage.output_of(0, stage.input_of(0)).host<double>();
    double sum = 0.0;
    for (std::size_t i = 0; i < factors.size(); ++i) {
      sum += factors[i] * output[i];
    }
    return sum;
  };

  loss();
  ASSERT_EQ(stage.output_gradient_of(0).count(), std::ssize(factors));
  std::copy(factors.begin(), factors.end(), stage.output_gradient_of(0).host<double>().begin());
  ArenaSink<double> sink(bench.layout().elements);
  stage.backward_input(0, stage.input_of(0), kFirstRow, sink);
  const std::span<const double> given = stage.input_gradient_of(0).host<double>();
  const std::vector<double> input_gradient(given.begin(), given.end());
  stage.backward_weight(0, stage.input_of(0), kFirstRow, sink);

  EXPECT_LT(error_against_differences(input_gradient, input, loss), kTolerance) << "input";
  for (const PlacedParameter& placed : bench.layout().parameters) {
    const auto gradient = std::span(sink.gradients())
                              .subspan(static_cast<std::size_t>(placed.offset),
                                       static_cast<std::size_t>(placed.shape.count()));
    EXPECT_LT(error_against_differences(gradient, bench.weight(placed), loss), kTolerance)
        << placed.spec.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layers, LayerGradients,
    testing::Values(
        Case{"dense", {"dense 4"}, Shape{6}, 4}, Case{"dense_relu", {"dense 4 relu"}, Shape{6}, 4},
        Case{"dense_without_bias", {"dense 4 bias=no"}, Shape{6}, 4},
        Case{"dense_on_rows", {"dense 4 relu", "flatten"}, Shape{3, 5}, 12},
        Case{"relu", {"relu"}, Shape{7}, 7}, Case{"gelu", {"gelu"}, Shape{7}, 7},
        Case{"tanh", {"tanh"}, Shape{7}, 7}, Case{"sigmoid", {"sigmoid"}, Shape{7}, 7},
        Case{"softmax", {"softmax"}, Shape{7}, 7},
        Case{"softmax_on_rows", {"softmax", "flatten"}, Shape{2, 4}, 8},
        Case{"layer_norm", {"layer_norm"}, Shape{9}, 9},
        Case{"layer_norm_epsilon", {"layer_norm epsilon=0.1"}, Shape{9}, 9},
        Case{"layer_norm_on_rows", {"layer_norm", "flatten"}, Shape{3, 4}, 12},
        Case{"dropout", {"dropout 0.4"}, Shape{11}, 11},
        Case{"dropout_on_rows", {"dropout 0.4", "flatten"}, Shape{3, 4}, 12},
        Case{"begins_with_flatten", {"flatten", "dense 4"}, Shape{2, 3}, 4},
        Case{"ends_with_flatten", {"dense 4", "flatten"}, Shape{2, 3}, 8},
        Case{"flatten_alone", {"flatten"}, Shape{2, 3}, 6},
        Case{"flattens_twice", {"flatten", "tanh", "flatten"}, Shape{2, 3}, 6},
        Case{"a_network",
             {"dense 7 relu", "layer_norm", "dropout 0.2", "flatten", "dense 6", "gelu", "dense 3"},
             Shape{2, 4},
             3}),
    [](const auto& test) { return test.param.name; });

class LossGradients : public testing::TestWithParam<LossKind> {};

// A first stage, whose input has no gradient, up to the loss; the last row is padding.
TEST_P(LossGradients, AgreeWithDifferences) {
  const bool classes = GetParam() == LossKind::kCrossEntropy;
  const Model model({.layers = {"flatten", "dense 6 relu", "dropout 0.3", "dense 4"},
                     .loss = GetParam(),
                     .input_shape = {2, 3},
                     .outputs = 4,
                     .seed = 4});
  StageBench<double> bench(model, spec_of<double>({0, 4}, kMicrobatch));
  Stage& stage = bench.stage();
  const std::vector<double> inputs = numbers<double>(kMicrobatch * 6, 1);
  const ConstTensorView input{std::span(inputs), Shape{kMicrobatch, 2, 3}};
  const std::vector<std::int64_t> labels{3, 0, 1, 1, 2};
  const std::vector<double> values = numbers<double>(kMicrobatch * 4, 2);
  const ConstTensorView targets = classes
                                      ? ConstTensorView{std::span(labels), Shape{kMicrobatch}}
                                      : ConstTensorView{std::span(values), Shape{kMicrobatch, 4}};
  constexpr double kScale = 0.125;
  const auto loss = [&] {
    stage.forward(0, input, kFirstRow, Mode::kTraining);
    return kScale * stage.loss(0, input, targets, kMicrobatch - 1, kScale, Mode::kTraining).loss;
  };
  loss();
  ArenaSink<double> sink(bench.layout().elements);
  stage.backward_input(0, input, kFirstRow, sink);
  stage.backward_weight(0, input, kFirstRow, sink);
  EXPECT_TRUE(stage.input_gradient_of(0).empty());
  EXPECT_EQ(sink.done(), (std::vector<std::int64_t>{3, 2, 1, 0}));
  for (const PlacedParameter& placed : bench.layout().parameters) {
    const auto gradient = std::span(sink.gradients())
                              .subspan(static_cast<std::size_t>(placed.offset),
                                       static_cast<std::size_t>(placed.shape.count()));
    EXPECT_LT(error_against_differences(gradient, bench.weight(placed), loss), kTolerance)
        << placed.spec.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, LossGradients,
                         testing::Values(LossKind::kCrossEntropy, LossKind::kMeanSquaredError),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace strata::nn::test
