// Everything that memory bounds; bytes are those read and written once.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "strata/ops/activation.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/reduce.hpp"
#include "strata/ops/row_norm.hpp"
#include "strata/ops/update.hpp"

namespace {

using namespace strata;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kRows = 256;
constexpr std::int64_t kColumns = 2048;
constexpr std::int64_t kCount = kRows * kColumns;

/// A float tensor of mixed signs.
class Tensor {
 public:
  explicit Tensor(const Shape& shape = {kRows, kColumns})
      : shape_(shape), elements_(static_cast<std::size_t>(shape.count())) {
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      elements_[i] = static_cast<float>(static_cast<double>(i % 257) / 64.0 - 2.0);
    }
  }
  [[nodiscard]] TensorView view() { return {std::span(elements_), shape_}; }

 private:
  Shape shape_;
  std::vector<float> elements_;
};

/// Times operation(), which reads and writes `bytes`.
template <typename Operation>
void measure(benchmark::State& state, std::int64_t bytes, const Operation& operation) {
  for (auto _ : state) {
    operation();
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

void activation_forward(benchmark::State& state, ops::Activation activation) {
  ops::Context context(1);
  Tensor x;
  Tensor y;
  measure(state, 2 * 4 * kCount,
          [&] { ops::activation_forward(context, activation, x.view(), y.view()); });
}

void activation_backward(benchmark::State& state, ops::Activation activation) {
  ops::Context context(1);
  Tensor x;
  Tensor dy;
  Tensor dx;
  measure(state, 3 * 4 * kCount, [&] {
    ops::activation_backward(context, activation, x.view(), x.view(), dy.view(), dx.view());
  });
}

void softmax(benchmark::State& state) {
  ops::Context context(1);
  Tensor x;
  Tensor y;
  measure(state, 2 * 4 * kCount, [&] { ops::softmax_forward(context, x.view(), y.view()); });
}

void softmax_backward(benchmark::State& state) {
  ops::Context context(1);
  Tensor y;
  Tensor dy;
  Tensor dx;
  measure(state, 3 * 4 * kCount,
          [&] { ops::softmax_backward(context, y.view(), dy.view(), dx.view()); });
}

void dropout(benchmark::State& state) {
  ops::Context context(1);
  const RandomStream stream(1, RandomPurpose::kDropout, 1);
  Tensor x;
  Tensor y;
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(kCount));
  measure(state, 9 * kCount, [&] {
    ops::dropout_forward(context, x.view(), 0.2, stream, {0}, y.view(),
                         TensorView(std::span(mask), {kRows, kColumns}));
  });
}

void dropout_backward(benchmark::State& state) {
  ops::Context context(1);
  Tensor dy;
  Tensor dx;
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(kCount), 1);
  measure(state, 9 * kCount, [&] {
    ops::dropout_backward(context, dy.view(), TensorView(std::span(mask), {kRows, kColumns}), 0.2,
                          dx.view());
  });
}

enum class NormPass { kForward, kInput, kWeight };

void layer_norm(benchmark::State& state, NormPass pass) {
  ops::Context context(1);
  Tensor x;
  Tensor y;
  Tensor dx;
  Tensor weight({kColumns});
  Tensor bias({kColumns});
  Tensor mean({kRows});
  Tensor rstd({kRows});
  measure(state, (pass == NormPass::kInput ? 3 : 2) * 4 * kCount, [&] {
    if (pass == NormPass::kForward) {
      ops::row_norm_forward(context, {ops::Center::kMean}, x.view(), weight.view(), bias.view(),
                            1e-5, y.view(), mean.view(), rstd.view());
    } else if (pass == NormPass::kInput) {
      ops::row_norm_backward_input(context, {ops::Center::kMean}, x.view(), weight.view(),
                                   mean.view(), rstd.view(), y.view(), {}, dx.view());
    } else {
      ops::row_norm_backward_weight(context, {ops::Center::kMean}, x.view(), mean.view(),
                                    rstd.view(), y.view(), weight.view(), bias.view(),
                                    ops::Accumulate::kOverwrite);
    }
  });
}

void cross_entropy(benchmark::State& state) {
  ops::Context context(1);
  const std::int64_t classes = state.range(0);
  const std::int64_t rows = kCount / classes;
  Tensor logits({rows, classes});
  Tensor gradient({rows, classes});
  std::vector<std::int64_t> labels(static_cast<std::size_t>(rows), 3);
  std::array<std::int64_t, ops::kLossElements> numbers{};
  const TensorView sums(std::span<std::int64_t>(numbers), {ops::kLossElements});
  measure(state, 2 * 4 * rows * classes, [&] {
    ops::cross_entropy(context, logits.view(), TensorView(std::span(labels), {rows}), rows, 1.0,
                       gradient.view(), sums);
    benchmark::ClobberMemory();
  });
}

void mean_squared_error(benchmark::State& state) {
  ops::Context context(1);
  Tensor prediction;
  Tensor target;
  Tensor gradient;
  std::array<std::int64_t, ops::kLossElements> numbers{};
  const TensorView sums(std::span<std::int64_t>(numbers), {ops::kLossElements});
  measure(state, 3 * 4 * kCount, [&] {
    ops::mean_squared_error(context, prediction.view(), target.view(), kRows, 1.0, gradient.view(),
                            sums);
    benchmark::ClobberMemory();
  });
}

void column_sum(benchmark::State& state) {
  ops::Context context(1);
  Tensor x;
  Tensor sum({kColumns});
  measure(state, 4 * kCount,
          [&] { ops::column_sum(context, x.view(), sum.view(), ops::Accumulate::kOverwrite); });
}

void fold(benchmark::State& state) {
  ops::Context context(1);
  const std::int64_t parts = state.range(0);
  const std::int64_t count = state.range(1);
  std::vector<Tensor> tensors;
  std::vector<TensorView> views;
  for (std::int64_t part = 0; part < parts; ++part) {
    tensors.emplace_back(Shape{count});
  }
  for (Tensor& tensor : tensors) {
    ops::fill_zero(context, tensor.view());
    views.push_back(tensor.view());
  }
  std::vector<ReductionStep> steps;
  for (std::int64_t stride = 1; stride < parts; stride *= 2) {
    for (std::int64_t part = 0; part + stride < parts; part += 2 * stride) {
      steps.push_back({part, part + stride});
    }
  }
  measure(state, parts * count * 4, [&] { ops::fold(context, views, steps); });
}

void sum_of_squares(benchmark::State& state) {
  ops::Context context(1);
  Tensor x;
  std::vector<double> sums(static_cast<std::size_t>(kCount / 4096));
  measure(state, 4 * kCount, [&] {
    ops::sum_of_squares_blocks(context, x.view(), 4096, {std::span(sums), Shape{std::ssize(sums)}});
    benchmark::ClobberMemory();
  });
}

void add(benchmark::State& state) {
  ops::Context context(1);
  Tensor x;
  Tensor y;
  ops::fill_zero(context, x.view());
  measure(state, 3 * 4 * kCount, [&] { ops::add(context, x.view(), y.view()); });
}

void sgd(benchmark::State& state) {
  ops::Context context(1);
  Tensor weight;
  Tensor gradient;
  Tensor momentum;
  measure(state, 5 * 4 * kCount, [&] {
    ops::sgd_update(context, weight.view(), gradient.view(), momentum.view(),
                    {.learning_rate = 1e-6, .momentum = 0.9});
  });
}

void adam(benchmark::State& state) {
  ops::Context context(1);
  Tensor weight;
  Tensor gradient;
  Tensor m;
  Tensor v;
  ops::fill_zero(context, v.view());
  measure(state, 7 * 4 * kCount, [&] {
    ops::adam_update(context, weight.view(), gradient.view(), m.view(), v.view(),
                     {.learning_rate = 1e-6});
  });
}

void adagrad(benchmark::State& state) {
  ops::Context context(1);
  Tensor weight;
  Tensor gradient;
  Tensor sum;
  ops::fill_zero(context, sum.view());
  measure(state, 5 * 4 * kCount, [&] {
    ops::adagrad_update(context, weight.view(), gradient.view(), sum.view(),
                        {.learning_rate = 1e-6});
  });
}

BENCHMARK_CAPTURE(activation_forward, relu, ops::Activation::kRelu);
BENCHMARK_CAPTURE(activation_forward, gelu, ops::Activation::kGelu);
BENCHMARK_CAPTURE(activation_forward, gelu_erf, ops::Activation::kGeluErf);
BENCHMARK_CAPTURE(activation_forward, tanh, ops::Activation::kTanh);
BENCHMARK_CAPTURE(activation_forward, sigmoid, ops::Activation::kSigmoid);
BENCHMARK_CAPTURE(activation_backward, relu, ops::Activation::kRelu);
BENCHMARK_CAPTURE(activation_backward, gelu, ops::Activation::kGelu);
BENCHMARK_CAPTURE(activation_backward, gelu_erf, ops::Activation::kGeluErf);
BENCHMARK_CAPTURE(activation_backward, tanh, ops::Activation::kTanh);
BENCHMARK_CAPTURE(activation_backward, sigmoid, ops::Activation::kSigmoid);
BENCHMARK(softmax);
BENCHMARK(softmax_backward);
BENCHMARK(dropout);
BENCHMARK(dropout_backward);
BENCHMARK_CAPTURE(layer_norm, forward, NormPass::kForward);
BENCHMARK_CAPTURE(layer_norm, input, NormPass::kInput);
BENCHMARK_CAPTURE(layer_norm, weight, NormPass::kWeight);
BENCHMARK(cross_entropy)->Arg(10)->Arg(50000);
BENCHMARK(mean_squared_error);
BENCHMARK(column_sum);
BENCHMARK(fold)->Args({2, 1 << 22})->Args({4, 1 << 22})->Args({8, 1 << 21});
BENCHMARK(sum_of_squares);
BENCHMARK(add);
BENCHMARK(sgd);
BENCHMARK(adam);
BENCHMARK(adagrad);

}  // namespace

BENCHMARK_MAIN();
