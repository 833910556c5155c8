// Matrix products of a dense layer: forward, input gradient, weight gradient.
#include <cstdint>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "strata/ops/context.hpp"
#include "strata/ops/matmul.hpp"

namespace {

using namespace strata;  // NOLINT(google-build-using-namespace)

template <typename T>
class Dense {
 public:
  Dense(std::int64_t rows, std::int64_t inputs, std::int64_t outputs)
      : rows_(rows), inputs_(inputs), outputs_(outputs) {}

  [[nodiscard]] TensorView x() { return {std::span(x_), {rows_, inputs_}}; }
  [[nodiscard]] TensorView y() { return {std::span(y_), {rows_, outputs_}}; }
  [[nodiscard]] TensorView w() { return {std::span(w_), {outputs_, inputs_}}; }
  [[nodiscard]] TensorView dw() { return {std::span(dw_), {outputs_, inputs_}}; }
  [[nodiscard]] TensorView b() { return {std::span(b_), {outputs_}}; }
  [[nodiscard]] double flop() const {
    return 2.0 * static_cast<double>(rows_) * static_cast<double>(inputs_) *
           static_cast<double>(outputs_);
  }

 private:
  template <typename U>
  static std::vector<U> ones(std::int64_t count) {
    return std::vector<U>(static_cast<std::size_t>(count),
                          static_cast<U>(Compute<U>{1} / Compute<U>{64}));
  }

  std::int64_t rows_;
  std::int64_t inputs_;
  std::int64_t outputs_;
  std::vector<T> x_ = ones<T>(rows_ * inputs_);
  std::vector<T> y_ = ones<T>(rows_ * outputs_);
  std::vector<T> w_ = ones<T>(inputs_ * outputs_);
  std::vector<Compute<T>> dw_ = ones<Compute<T>>(inputs_ * outputs_);
  std::vector<T> b_ = ones<T>(outputs_);
};

enum class Pass { kForward, kInput, kWeight };

template <typename T, Pass kPass>
void dense(benchmark::State& state) {
  Dense<T> layer(state.range(0), state.range(1), state.range(2));
  ops::Context context(static_cast<int>(state.range(3)));
  const auto product = [&] {
    if constexpr (kPass == Pass::kForward) {
      ops::matmul(context, layer.x(), layer.w(), layer.y(),
                  {.transpose_b = ops::Transpose::kYes,
                   .bias = layer.b(),
                   .activation = ops::Activation::kRelu});
    } else if constexpr (kPass == Pass::kInput) {
      ops::matmul(context, layer.y(), layer.w(), layer.x());
    } else {
      ops::matmul(context, layer.y(), layer.x(), layer.dw(),
                  {.transpose_a = ops::Transpose::kYes, .accumulate = ops::Accumulate::kAdd});
    }
    benchmark::ClobberMemory();
  };
  // The library makes its kernels at the first call.
  product();
  for (auto _ : state) {
    product();
  }
  state.counters["FLOP/s"] =
      benchmark::Counter(layer.flop(), benchmark::Counter::kIsIterationInvariantRate);
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "inputs", "outputs", "threads"});
  for (const int threads : {1, 2}) {
    benchmark->Args({128, 784, 128, threads})
        ->Args({128, 128, 10, threads})
        ->Args({256, 2048, 2048, threads});
  }
  benchmark->UseRealTime();
}

/// Rows, inputs and outputs of a small character model's layers and of GPT-2's.
void language_model_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "inputs", "outputs", "threads"})
      ->Args({768, 128, 384, 1})
      ->Args({768, 128, 128, 1})
      ->Args({768, 128, 512, 1})
      ->Args({768, 512, 128, 1})
      ->Args({256, 768, 2304, 1})
      ->Args({256, 768, 768, 1})
      ->Args({256, 768, 3072, 1})
      ->Args({256, 3072, 768, 1})
      ->Args({256, 768, 50257, 1})
      ->UseRealTime();
}

void double_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "inputs", "outputs", "threads"})
      ->Args({128, 784, 128, 1})
      ->UseRealTime();
}

BENCHMARK(dense<float, Pass::kForward>)->Apply(sizes);
BENCHMARK(dense<float, Pass::kInput>)->Apply(sizes);
BENCHMARK(dense<float, Pass::kWeight>)->Apply(sizes);
BENCHMARK(dense<float, Pass::kForward>)->Apply(language_model_sizes);
BENCHMARK(dense<float, Pass::kInput>)->Apply(language_model_sizes);
BENCHMARK(dense<float, Pass::kWeight>)->Apply(language_model_sizes);
BENCHMARK(dense<BFloat16, Pass::kForward>)->Apply(language_model_sizes);
BENCHMARK(dense<BFloat16, Pass::kInput>)->Apply(language_model_sizes);
BENCHMARK(dense<BFloat16, Pass::kWeight>)->Apply(language_model_sizes);
BENCHMARK(dense<double, Pass::kForward>)->Apply(double_sizes);
BENCHMARK(dense<double, Pass::kInput>)->Apply(double_sizes);
BENCHMARK(dense<double, Pass::kWeight>)->Apply(double_sizes);

}  // namespace

BENCHMARK_MAIN();
