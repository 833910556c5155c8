// Everything that memory bounds; bytes are those read and written once.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include <benchmark/benchmark.h>

#include "strata/ops/activation.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/layer_norm.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/reduce.hpp"
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

void count_bytes(benchmark::State& state, std::int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

/// Times operation(context, views) on kTensors tensors, `moved` of which it reads or writes; the
/// last `zeroed` begin at zero.
template <std::size_t kTensors, typename Operation>
void measure(benchmark::State& state, std::int64_t moved, const Operation& operation,
             std::size_t zeroed = 0) {
  ops::Context context(1);
  std::array<Tensor, kTensors> tensors;
  for (std::size_t i = kTensors - zeroed; i < kTensors; ++i) {
    ops::fill_zero(context, tensors[i].view());
  }
  for (auto _ : state) {
    std::apply([&](auto&... tensor) { operation(context, tensor.view()...); }, tensors);
  }
  count_bytes(state, moved * 4 * kCount);
}

void activation_forward(benchmark::State& state, ops::Activation activation) {
  measure<2>(state, 2, [&](ops::Context& context, const TensorView& x, const TensorView& y) {
    ops::activation_forward(context, activation, x, y);
  });
}

void activation_backward(benchmark::State& state, ops::Activation activation) {
  measure<3>(
      state, 3,
      [&](ops::Context& context, const TensorView& x, const TensorView& dy, const TensorView& dx) {
        ops::activation_backward(context, activation, x, x, dy, dx);
      });
}

void softmax(benchmark::State& state) {
  measure<2>(state, 2, ops::softmax_forward);
}

void softmax_backward(benchmark::State& state) {
  measure<3>(state, 3, ops::softmax_backward);
}

void dropout(benchmark::State& state) {
  ops::Context context(1);
  const RandomStream stream(1, RandomPurpose::kDropout, 1);
  Tensor x;
  Tensor y;
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(kCount));
  for (auto _ : state) {
    ops::dropout_forward(context, x.view(), 0.2, stream, {0}, y.view(),
                         TensorView(std::span(mask), {kRows, kColumns}));
  }
  count_bytes(state, 9 * kCount);
}

void dropout_backward(benchmark::State& state) {
  ops::Context context(1);
  Tensor dy;
  Tensor dx;
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(kCount), 1);
  for (auto _ : state) {
    ops::dropout_backward(context, dy.view(), TensorView(std::span(mask), {kRows, kColumns}), 0.2,
                          dx.view());
  }
  count_bytes(state, 9 * kCount);
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
  for (auto _ : state) {
    if (pass == NormPass::kForward) {
      ops::layer_norm_forward(context, x.view(), weight.view(), bias.view(), 1e-5, y.view(),
                              mean.view(), rstd.view());
    } else if (pass == NormPass::kInput) {
      ops::layer_norm_backward_input(context, x.view(), weight.view(), mean.view(), rstd.view(),
                                     y.view(), {}, dx.view());
    } else {
      ops::layer_norm_backward_weight(context, x.view(), mean.view(), rstd.view(), y.view(),
                                      weight.view(), bias.view(), ops::Accumulate::kOverwrite);
    }
  }
  count_bytes(state, (pass == NormPass::kInput ? 3 : 2) * 4 * kCount);
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
  for (auto _ : state) {
    ops::cross_entropy(context, logits.view(), TensorView(std::span(labels), {rows}), rows, 1.0,
                       gradient.view(), sums);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * 4 * rows * classes);
}

void mean_squared_error(benchmark::State& state) {
  ops::Context context(1);
  Tensor prediction;
  Tensor target;
  Tensor gradient;
  std::array<std::int64_t, ops::kLossElements> numbers{};
  const TensorView sums(std::span<std::int64_t>(numbers), {ops::kLossElements});
  for (auto _ : state) {
    ops::mean_squared_error(context, prediction.view(), target.view(), kRows, 1.0, gradient.view(),
                            sums);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 3 * 4 * kCount);
}

void column_sum(benchmark::State& state) {
  ops::Context context(1);
  Tensor x;
  Tensor sum({kColumns});
  for (auto _ : state) {
    ops::column_sum(context, x.view(), sum.view(), ops::Accumulate::kOverwrite);
  }
  count_bytes(state, 4 * kCount);
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
  for (auto _ : state) {
    ops::fold(context, views, steps);
  }
  count_bytes(state, parts * count * 4);
}

void sum_of_squares(benchmark::State& state) {
  ops::Context context(1);
  Tensor x;
  std::vector<double> sums(static_cast<std::size_t>(kCount / 4096));
  for (auto _ : state) {
    ops::sum_of_squares_blocks(context, x.view(), 4096, {std::span(sums), Shape{std::ssize(sums)}});
    benchmark::ClobberMemory();
  }
  count_bytes(state, 4 * kCount);
}

void add(benchmark::State& state) {
  // The sum comes first.
  measure<2>(
      state, 3,
      [](ops::Context& context, const TensorView& y, const TensorView& x) {
        ops::add(context, x, y);
      },
      1);
}

void sgd(benchmark::State& state) {
  measure<3>(state, 5,
             [](ops::Context& context, const TensorView& weight, const TensorView& gradient,
                const TensorView& momentum) {
               ops::sgd_update(context, weight, gradient, momentum,
                               {.learning_rate = 1e-6, .momentum = 0.9});
             });
}

void adam(benchmark::State& state) {
  measure<4>(
      state, 7,
      [](ops::Context& context, const TensorView& weight, const TensorView& gradient,
         const TensorView& m, const TensorView& v) {
        ops::adam_update(context, weight, gradient, m, v, {.learning_rate = 1e-6});
      },
      1);
}

void adagrad(benchmark::State& state) {
  measure<3>(
      state, 5,
      [](ops::Context& context, const TensorView& weight, const TensorView& gradient,
         const TensorView& sum) {
        ops::adagrad_update(context, weight, gradient, sum, {.learning_rate = 1e-6});
      },
      1);
}

BENCHMARK_CAPTURE(activation_forward, relu, ops::Activation::kRelu);
BENCHMARK_CAPTURE(activation_forward, gelu, ops::Activation::kGelu);
BENCHMARK_CAPTURE(activation_forward, tanh, ops::Activation::kTanh);
BENCHMARK_CAPTURE(activation_forward, sigmoid, ops::Activation::kSigmoid);
BENCHMARK_CAPTURE(activation_backward, relu, ops::Activation::kRelu);
BENCHMARK_CAPTURE(activation_backward, gelu, ops::Activation::kGelu);
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
