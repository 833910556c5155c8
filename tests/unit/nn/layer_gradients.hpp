#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "central_difference.hpp"
#include "stage_bench.hpp"

namespace strata::nn::test {

inline constexpr std::int64_t kMicrobatch = 5;
inline constexpr std::int64_t kFirstRow = 1000;
inline constexpr double kTolerance = 1e-8;

/// |a - b| / |b| in the Euclidean norm, `b` by central differences of `loss` at `at`.
inline double error_against_differences(std::span<const double> a, std::span<double> at,
                                        const std::function<double()>& loss) {
  constexpr double kStep = 1e-5;
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double expected = strata::test::central_difference(loss, at[i], kStep);
    difference += (a[i] - expected) * (a[i] - expected);
    norm += expected * expected;
  }
  return std::sqrt(difference / norm);
}

/// Holds the sink's gradients of all trained weights to differences of `loss`; a borrowed
/// parameter's adds to its owner's.
inline void expect_weight_gradients(StageBench<double>& bench, const ArenaSink<double>& sink,
                                    const std::function<double()>& loss) {
  const auto slices = slices_of(bench.layout(), sink.gradients());
  for (const PlacedParameter& placed : bench.layout().parameters) {
    if (placed.offset >= bench.layout().weight_elements ||
        placed.spec.rule == ParameterRule::kAverage) {
      continue;
    }
    std::vector<double> gradient = slices.at(fmt::format("{} {}", placed.spec.name, placed.shard));
    const auto borrowed =
        slices.find(fmt::format("{} borrowed {}", placed.spec.name, placed.shard));
    for (std::size_t i = 0; borrowed != slices.end() && i < gradient.size(); ++i) {
      gradient[i] += borrowed->second[i];
    }
    EXPECT_LT(error_against_differences(gradient, bench.weight(placed), loss), kTolerance)
        << placed.spec.name << ", slice " << placed.shard;
  }
}

/// Holds the weight gradients of a first stage that ends at the loss to differences of that loss;
/// the last of `samples` samples is padding. `sink` takes the gradients.
inline void expect_loss_gradients(StageBench<double>& bench, ArenaSink<double>& sink,
                                  const ConstTensorView& input, const ConstTensorView& targets,
                                  std::int64_t samples, Mode loss_mode = Mode::kEvaluation,
                                  const std::function<Alone(Alone)>& with_more = std::identity()) {
  constexpr double kScale = 0.125;
  Stage& stage = bench.stage();
  const auto forward = [&](Mode mode) {
    stage.forward(Alone(0, input, kFirstRow), Mode::kTraining);
    stage.loss(with_more(Alone(0, input, 0)).microbatch, targets, samples - 1, kScale, mode);
  };
  const auto loss = [&] {
    forward(loss_mode);
    return kScale * stage.losses().front().loss;
  };
  forward(Mode::kTraining);
  stage.backward_input(Alone(0, input, kFirstRow), sink);
  stage.backward_weight(Alone(0, input, kFirstRow), sink);
  expect_weight_gradients(bench, sink, loss);
}

struct GradientCase {
  std::string name;
  /// The layers behind a first one, "relu", which another stage holds.
  std::vector<std::string> layers;
  Shape input;
  std::int64_t outputs;
  std::int64_t shards = 1;
};

inline void PrintTo(const GradientCase& c, std::ostream* out) {
  *out << c.name;
}

/// Holds the gradients of input and weights to differences of a random combination of the outputs.
inline void expect_layer_gradients(const GradientCase& c) {
  std::vector<std::string> layers{"relu name=before"};
  layers.insert(layers.end(), c.layers.begin(), c.layers.end());
  const Model model({.layers = layers,
                     .input_shape = c.input,
                     .outputs = c.outputs,
                     .seed = 4,
                     .shards = c.shards});
  StageBench<double> bench(model, spec_of<double>({1, model.layer_count()}, kMicrobatch));
  Stage& stage = bench.stage();
  const std::span<double> input = stage.inputs_of(0).front().host<double>();
  const std::vector<double> start = numbers<double>(std::ssize(input), 1);
  std::copy(start.begin(), start.end(), input.begin());
  const std::vector<double> factors = numbers<double>(kMicrobatch * c.outputs, 2);
  const auto loss = [&] {
    stage.forward(Alone(0, stage.inputs_of(0).front(), kFirstRow), Mode::kTraining);
    const std::span<const double> output =
        stage.outputs_of(Alone(0, stage.inputs_of(0).front(), 0).microbatch).front().host<double>();
    double sum = 0.0;
    for (std::size_t i = 0; i < factors.size(); ++i) {
      sum += factors[i] * output[i];
    }
    return sum;
  };

  loss();
  ASSERT_EQ(stage.output_gradients_of(0).front().count(), std::ssize(factors));
  std::copy(factors.begin(), factors.end(),
            stage.output_gradients_of(0).front().host<double>().begin());
  ArenaSink<double> sink(bench.layout().elements);
  stage.backward_input(Alone(0, stage.inputs_of(0).front(), kFirstRow), sink);
  const std::span<const double> given = stage.input_gradients_of(0).front().host<double>();
  const std::vector<double> input_gradient(given.begin(), given.end());
  stage.backward_weight(Alone(0, stage.inputs_of(0).front(), kFirstRow), sink);
  EXPECT_LT(error_against_differences(input_gradient, input, loss), kTolerance) << "input";
  expect_weight_gradients(bench, sink, loss);
}

}  // namespace strata::nn::test
