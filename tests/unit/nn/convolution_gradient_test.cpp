// The layers of convolutional networks, run through a stage in f64, against central differences,
// and the running statistics of batch normalisation.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "layer_gradients.hpp"

namespace strata::nn::test::convolution_gradient_test {
namespace {

class ConvolutionGradients : public testing::TestWithParam<GradientCase> {};

TEST_P(ConvolutionGradients, AgreeWithDifferences) {
  expect_layer_gradients(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Layers, ConvolutionGradients,
    testing::Values(
        GradientCase{"conv", {"conv 3 3", "flatten"}, Shape{2, 5, 4}, 18},
        GradientCase{"conv_relu", {"conv 3 3 relu padding=same", "flatten"}, Shape{2, 4, 3}, 36},
        GradientCase{"conv_of_one_channel", {"conv 2 3", "flatten"}, Shape{1, 4, 4}, 8},
        GradientCase{
            "conv_strided", {"conv 4 3x2 stride=2 padding=1", "flatten"}, Shape{2, 5, 4}, 36},
        GradientCase{
            "conv_in_groups", {"conv 4 3 groups=2 bias=off", "flatten"}, Shape{4, 4, 4}, 16},
        GradientCase{"conv_dilated", {"conv 2 2 dilation=2", "flatten"}, Shape{2, 4, 4}, 8},
        GradientCase{"max_pool", {"max_pool 2", "flatten"}, Shape{2, 4, 6}, 12},
        GradientCase{"max_pool_overlapping",
                     {"max_pool 3 stride=2 padding=1", "flatten"},
                     Shape{2, 5, 5},
                     18},
        GradientCase{"avg_pool", {"avg_pool 3 stride=2 padding=1", "flatten"}, Shape{2, 5, 4}, 12},
        GradientCase{"global_avg_pool", {"global_avg_pool", "dense 3"}, Shape{4, 3, 2}, 3},
        GradientCase{"zero_pad", {"zero_pad 2", "conv 2 3", "flatten"}, Shape{2, 3, 2}, 40},
        GradientCase{
            "zero_channels", {"zero_channels 5", "conv 2 1", "flatten"}, Shape{2, 3, 2}, 12},
        GradientCase{"batch_norm", {"batch_norm", "flatten"}, Shape{3, 2, 2}, 12},
        GradientCase{"batch_norm_relu", {"batch_norm relu", "flatten"}, Shape{3, 2, 2}, 12},
        GradientCase{"batch_norm_of_vectors", {"batch_norm epsilon=0.1"}, Shape{4}, 4},
        GradientCase{"group_norm", {"group_norm 2", "flatten"}, Shape{4, 3, 2}, 24},
        GradientCase{"dropout_on_images", {"dropout 0.3", "flatten"}, Shape{3, 2, 2}, 12},
        GradientCase{"residual",
                     {"residual", "conv 3 3 padding=same bias=off", "batch_norm relu",
                      "conv 3 3 padding=same bias=off", "batch_norm", "end relu", "flatten"},
                     Shape{3, 4, 3},
                     36},
        GradientCase{"residual_with_shortcut",
                     {"residual", "conv 4 3 relu stride=2 padding=1", "conv 4 3 padding=1",
                      "shortcut", "conv 4 1 stride=2 bias=off", "batch_norm", "end", "flatten"},
                     Shape{2, 4, 4},
                     16},
        GradientCase{"residual_in_residual",
                     {"residual", "conv 2 1", "residual", "tanh", "end", "batch_norm", "end relu",
                      "flatten"},
                     Shape{2, 3, 2},
                     12},
        GradientCase{"column_and_row",
                     {"conv 4 3 relu padding=same parallel=column", "max_pool 2", "batch_norm",
                      "conv 3 1 parallel=row", "flatten"},
                     Shape{2, 4, 4},
                     12,
                     2},
        GradientCase{"column_to_dense",
                     {"conv 4 3 parallel=column bias=off", "group_norm 2", "dropout 0.2", "flatten",
                      "dense 3 parallel=row"},
                     Shape{2, 4, 4},
                     3,
                     2}),
    [](const auto& test) { return test.param.name; });

constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kMicrobatches = 3;
constexpr std::int64_t kPixels = 6;
constexpr double kMomentum = 0.3;

/// What one channel of one microbatch's pixels has.
struct Statistics {
  double mean = 0.0;
  double variance = 0.0;  ///< unbiased
};

Statistics statistics_of(const std::vector<double>& images, std::size_t channel) {
  // Images lie channels last.
  std::vector<double> values;
  for (std::size_t i = channel; i < images.size(); i += 2) {
    values.push_back(images[i]);
  }
  Statistics result;
  for (const double value : values) {
    result.mean += value / static_cast<double>(values.size());
  }
  for (const double value : values) {
    result.variance += (value - result.mean) * (value - result.mean);
  }
  result.variance /= static_cast<double>(values.size() - 1);
  return result;
}

TEST(RunningStatistics, FollowTheMicrobatchesOfAStepInOrder) {
  const Model model({.layers = {"batch_norm momentum=0.3", "flatten", "dense 2"},
                     .input_shape = {2, 3, 2},
                     .outputs = 2,
                     .seed = 4,
                     .step_microbatches = kMicrobatches});
  StageBench<double> bench(model, spec_of<double>({0, 3}, kBatch));
  ArenaSink<double> sink(bench.layout().elements);
  std::vector<std::vector<double>> images;
  for (std::int64_t m = 0; m < kMicrobatches; ++m) {
    images.push_back(numbers<double>(kBatch * kPixels * 2, 10 + static_cast<std::uint64_t>(m)));
    const ConstTensorView input{std::span(images.back()), Shape{kBatch, 3, 2, 2}};
    // The second step: its samples come behind those of the first.
    const std::int64_t first = (kMicrobatches + m) * kBatch;
    bench.stage().forward(Alone(m, input, first), Mode::kTraining);
    const std::vector<std::int64_t> labels(kBatch, 1);
    bench.stage().loss(Alone(m, input, 0).microbatch,
                       ConstTensorView{std::span(labels), Shape{kBatch}}, kBatch, 0.125,
                       Mode::kTraining);
    bench.stage().backward_input(Alone(m, input, first), sink);
    bench.stage().backward_weight(Alone(m, input, first), sink);
  }
  int found = 0;
  for (const PlacedParameter& placed : bench.layout().parameters) {
    if (placed.spec.rule != ParameterRule::kAverage) {
      continue;
    }
    ++found;
    const bool is_mean = placed.spec.name == "batch_norm1.running_mean";
    EXPECT_TRUE(is_mean || placed.spec.name == "batch_norm1.running_var") << placed.spec.name;
    for (std::size_t channel = 0; channel < 2; ++channel) {
      const double begin = is_mean ? 0.25 : 1.5;
      double expected = begin;
      for (const std::vector<double>& microbatch : images) {
        const Statistics now = statistics_of(microbatch, channel);
        expected = (1.0 - kMomentum) * expected + kMomentum * (is_mean ? now.mean : now.variance);
      }
      const double term = sink.gradients()[static_cast<std::size_t>(placed.offset) + channel];
      EXPECT_NEAR(placed.spec.keep * begin + term, expected, 1e-12) << placed.spec.name;
    }
  }
  EXPECT_EQ(found, 2);
}

TEST(RunningStatistics, AreWhatEvaluationNormalisesWith) {
  const Model model({.layers = {"batch_norm epsilon=0.5", "flatten", "dense 2"},
                     .input_shape = {2, 3, 2},
                     .outputs = 2,
                     .seed = 4});
  StageBench<double> bench(model, spec_of<double>({0, 2}, kBatch));
  const std::vector<std::vector<double>> weights{{2.0, 3.0}, {0.5, -1.0}, {0.1, -0.2}, {1.5, 0.75}};
  for (const PlacedParameter& placed : bench.layout().parameters) {
    const std::vector<double>& values = weights[static_cast<std::size_t>(placed.index)];
    std::copy(values.begin(), values.end(), bench.weight(placed).begin());
  }
  const std::vector<double> images = numbers<double>(kBatch * kPixels * 2, 3);
  const ConstTensorView input{std::span(images), Shape{kBatch, 3, 2, 2}};
  bench.stage().forward(Alone(0, input, 0), Mode::kEvaluation);
  const std::span<const double> output =
      bench.stage().outputs_of(Alone(0, input, 0).microbatch).front().host<double>();
  for (std::int64_t image = 0; image < kBatch; ++image) {
    for (std::int64_t pixel = 0; pixel < kPixels; ++pixel) {
      for (std::size_t channel = 0; channel < 2; ++channel) {
        const auto at = static_cast<std::size_t>((image * kPixels + pixel) * 2) + channel;
        const double expected = (images[at] - weights[2][channel]) /
                                    std::sqrt(weights[3][channel] + 0.5) * weights[0][channel] +
                                weights[1][channel];
        // Flat samples have a channel's pixels together.
        const auto flat = static_cast<std::size_t>(image * kPixels * 2 + pixel) +
                          channel * static_cast<std::size_t>(kPixels);
        EXPECT_NEAR(output[flat], expected, 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace strata::nn::test::convolution_gradient_test
