// Causal attention of a transformer block, and the cross-entropy of logits split by vocabulary.
#include <cstdint>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "strata/ops/attention.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/split_cross_entropy.hpp"

namespace {

using namespace strata;  // NOLINT(google-build-using-namespace)

template <typename T>
class Values {
 public:
  explicit Values(const Shape& shape)
      : shape_(shape), elements_(static_cast<std::size_t>(shape.count())) {
    std::uint32_t state = 1;
    for (T& element : elements_) {
      state = state * 1664525U + 1013904223U;
      element = static_cast<T>(static_cast<Compute<T>>(static_cast<double>(state) * 0x1p-31 - 1.0));
    }
  }
  [[nodiscard]] TensorView view() { return {std::span(elements_), shape_}; }

 private:
  Shape shape_;
  std::vector<T> elements_;
};

template <typename T>
struct Attention {
  explicit Attention(const ops::AttentionShape& of) : shape(of) {}

  void forward(ops::Context& context) {
    ops::causal_attention_forward(context, shape, qkv.view(), y.view(), log_sums.view(), mask);
  }
  void backward(ops::Context& context) {
    ops::causal_attention_backward(context, shape, qkv.view(), y.view(), log_sums.view(), dy.view(),
                                   dqkv.view(), mask);
  }

  ops::AttentionShape shape;
  ops::AttentionMask mask;
  Values<T> qkv{{shape.rows(), shape.qkv_width()}};
  Values<T> y{{shape.rows(), shape.width()}};
  Values<T> dy{{shape.rows(), shape.width()}};
  Values<T> dqkv{{shape.rows(), shape.qkv_width()}};
  Values<Compute<T>> log_sums{{shape.sequences, shape.heads(), shape.tokens}};
};

ops::AttentionShape shape_of(const benchmark::State& state) {
  return {state.range(0), state.range(1), state.range(2), 1, state.range(3)};
}

/// What `products` products of queries x keys x head_size take, the half that is seen counted.
double causal_flop(const ops::AttentionShape& shape, double products) {
  return products * static_cast<double>(shape.sequences * shape.heads() * shape.head_size) *
         static_cast<double>(shape.tokens * shape.tokens);
}

enum class Pass { kForward, kBackward };

template <typename T, Pass kPass>
void attention(benchmark::State& state) {
  Attention<T> layer(shape_of(state));
  ops::Context context(static_cast<int>(state.range(4)));
  layer.forward(context);
  for (auto _ : state) {
    if constexpr (kPass == Pass::kForward) {
      layer.forward(context);
    } else {
      layer.backward(context);
    }
    benchmark::ClobberMemory();
  }
  state.counters["FLOP/s"] =
      benchmark::Counter(causal_flop(layer.shape, kPass == Pass::kForward ? 2.0 : 5.0),
                         benchmark::Counter::kIsIterationInvariantRate);
}

/// Starts of documents of `mean` tokens on average, of 1 to twice as many.
std::vector<std::uint32_t> starts_of_documents(const ops::AttentionShape& shape,
                                               std::uint32_t mean) {
  std::vector<std::uint32_t> starts;
  std::uint32_t state = 1;
  for (std::int64_t row = 0, end = 0; row < shape.rows(); ++row) {
    const auto token = static_cast<std::uint32_t>(row % shape.tokens);
    if (token == 0 || row == end) {
      state = state * 1664525U + 1013904223U;
      end = row + 1 + static_cast<std::int64_t>(state >> 8U) % (2 * mean - 1);
      starts.push_back(token);
    } else {
      starts.push_back(starts.back());
    }
  }
  return starts;
}

/// Both passes: with all keys before a query, with documents of an eighth of the tokens on average,
/// with a window of an eighth.
enum class Masked { kNot, kDocuments, kWindow };

template <typename T, Masked kMasked>
void masked_attention(benchmark::State& state) {
  Attention<T> layer(shape_of(state));
  ops::Context context(static_cast<int>(state.range(4)));
  const std::int64_t part = layer.shape.tokens / 8;
  const std::vector<std::uint32_t> starts =
      starts_of_documents(layer.shape, static_cast<std::uint32_t>(part));
  if (kMasked == Masked::kDocuments) {
    layer.mask.document_starts =
        ConstTensorView(std::span(starts), {layer.shape.sequences, layer.shape.tokens});
  }
  layer.mask.window = kMasked == Masked::kWindow ? part : 0;
  for (auto _ : state) {
    layer.forward(context);
    layer.backward(context);
    benchmark::ClobberMemory();
  }
}

template <typename T>
void rotary(benchmark::State& state) {
  Attention<T> layer(shape_of(state));
  ops::Context context(static_cast<int>(state.range(4)));
  for (auto _ : state) {
    ops::rotary(context, layer.shape, {}, 0, ops::Rotation::kForward, layer.qkv.view());
    benchmark::ClobberMemory();
  }
}

template <typename T>
void split_cross_entropy(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t ids = state.range(1);
  Values<T> logits({rows, ids});
  Values<T> dlogits({rows, ids});
  Values<Compute<T>> parts({1, rows, ops::kCrossEntropyParts});
  Values<Compute<T>> log_sums({rows});
  Values<std::int64_t> sums({ops::kLossElements});
  std::vector<std::int64_t> targets(static_cast<std::size_t>(rows), ids / 2);
  const ConstTensorView target(std::span<const std::int64_t>(targets), {rows});
  ops::Context context(1);
  for (auto _ : state) {
    ops::cross_entropy_parts(context, logits.view(), target, 0, ids,
                             parts.view().reshaped({rows, ops::kCrossEntropyParts}));
    ops::combine_cross_entropy(context, {}, parts.view(), target, ids, rows, log_sums.view(),
                               sums.view());
    ops::cross_entropy_gradient(context, logits.view(), target, 0, ids, log_sums.view(), rows, 1.0,
                                dlogits.view());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * ids);
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"sequences", "tokens", "heads", "size", "threads"})
      ->Args({12, 64, 4, 32, 1})
      ->Args({4, 64, 12, 64, 1})
      ->Args({4, 1024, 12, 64, 1})
      ->Args({4, 1024, 12, 64, 2})
      ->UseRealTime();
}

void masked_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"sequences", "tokens", "heads", "size", "threads"})
      ->Args({4, 1024, 12, 64, 1})
      ->Args({1, 4096, 12, 64, 1})
      ->UseRealTime();
}

void logit_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "ids"})->Args({768, 65})->Args({256, 50257})->UseRealTime();
}

BENCHMARK(attention<float, Pass::kForward>)->Apply(sizes);
BENCHMARK(attention<float, Pass::kBackward>)->Apply(sizes);
BENCHMARK(attention<BFloat16, Pass::kForward>)->Apply(sizes);
BENCHMARK(attention<BFloat16, Pass::kBackward>)->Apply(sizes);
BENCHMARK(masked_attention<float, Masked::kNot>)->Apply(masked_sizes);
BENCHMARK(masked_attention<float, Masked::kDocuments>)->Apply(masked_sizes);
BENCHMARK(masked_attention<float, Masked::kWindow>)->Apply(masked_sizes);
BENCHMARK(rotary<float>)->Apply(sizes);
BENCHMARK(split_cross_entropy<float>)->Apply(logit_sizes);
BENCHMARK(split_cross_entropy<BFloat16>)->Apply(logit_sizes);

}  // namespace

BENCHMARK_MAIN();
