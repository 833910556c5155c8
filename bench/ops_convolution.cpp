// Operations of convolutional networks: convolution, pooling, batch and group normalisation.
#include <algorithm>
#include <cstdint>

#include <benchmark/benchmark.h>

#include "strata/device/buffer.hpp"
#include "strata/ops/batch_norm.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/convolution.hpp"
#include "strata/ops/group_norm.hpp"
#include "strata/ops/pooling.hpp"

namespace {

using namespace strata;  // NOLINT(google-build-using-namespace)

/// Aligned as a trainer's tensors are: vectors that straddle cache lines cost half of the speed.
template <typename T>
class Values {
 public:
  explicit Values(const Shape& shape)
      : shape_(shape),
        buffer_(device::Device::cpu(), shape.count() * static_cast<std::int64_t>(sizeof(T))) {
    std::ranges::fill(view().template host<T>(), static_cast<T>(Compute<T>{1} / Compute<T>{64}));
  }
  [[nodiscard]] TensorView view() const { return buffer_.view(0, shape_, kDTypeOf<T>); }

 private:
  Shape shape_;
  device::Buffer buffer_;
};

ops::WindowAxis axis_of(const benchmark::State& state) {
  ops::WindowAxis axis;
  axis.in = state.range(3);
  axis.window = state.range(4);
  axis.stride = state.range(5);
  axis.padding = state.range(6);
  axis.out = (axis.in + 2 * axis.padding - axis.window) / axis.stride + 1;
  return axis;
}

enum class Pass { kForward, kInput, kWeight };

template <typename T, Pass kPass>
void convolution(benchmark::State& state) {
  const ops::WindowAxis axis = axis_of(state);
  const ops::ConvolutionShape shape{state.range(0), axis, axis, state.range(1), state.range(2), 1};
  ops::Context context(static_cast<int>(state.range(7)));
  Values<T> x(shape.input());
  Values<T> w(shape.weight());
  Values<T> bias({shape.out_channels});
  Values<T> y(shape.output());
  Values<Compute<T>> dw(shape.weight());
  const auto run = [&] {
    if constexpr (kPass == Pass::kForward) {
      ops::convolution_forward(context, shape, x.view(), w.view(), y.view(),
                               {bias.view(), ops::Activation::kRelu});
    } else if constexpr (kPass == Pass::kInput) {
      ops::convolution_backward_input(context, shape, y.view(), w.view(), x.view());
    } else {
      ops::convolution_backward_weight(context, shape, x.view(), y.view(), dw.view(),
                                       ops::Accumulate::kOverwrite);
    }
    benchmark::ClobberMemory();
  };
  // The library makes its kernels at the first call.
  run();
  for (auto _ : state) {
    run();
  }
  const std::int64_t weights = shape.weight().count();
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(weights) *
                             static_cast<double>(shape.images * shape.height.out * shape.width.out),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void rate(benchmark::State& state, std::int64_t elements, std::int64_t element_bytes) {
  state.SetBytesProcessed(state.iterations() * elements * element_bytes);
}

template <typename T, Pass kPass>
void max_pool(benchmark::State& state) {
  const ops::WindowAxis axis{state.range(2), state.range(2) / 2, 2, 2, 1, 0};
  const ops::PoolingShape shape{state.range(0), axis, axis, state.range(1)};
  ops::Context context(1);
  Values<T> x(shape.input());
  Values<T> y(shape.output());
  Values<std::uint8_t> at(shape.output());
  ops::max_pool_forward(context, shape, x.view(), y.view(), at.view());
  for (auto _ : state) {
    if constexpr (kPass == Pass::kForward) {
      ops::max_pool_forward(context, shape, x.view(), y.view(), at.view());
    } else {
      ops::max_pool_backward(context, shape, y.view(), at.view(), x.view());
    }
    benchmark::ClobberMemory();
  }
  rate(state, shape.input().count() + shape.output().count(), sizeof(T));
}

template <typename T, Pass kPass>
void batch_norm(benchmark::State& state) {
  const Shape shape{state.range(0) * state.range(2) * state.range(2), state.range(1)};
  ops::Context context(1);
  Values<T> x(shape);
  Values<T> y(shape);
  Values<T> dy(shape);
  Values<T> weight({shape[1]});
  Values<Compute<T>> mean({shape[1]});
  Values<Compute<T>> variance({shape[1]});
  Values<Compute<T>> dweight({shape[1]});
  Values<Compute<T>> dbias({shape[1]});
  for (auto _ : state) {
    if constexpr (kPass == Pass::kForward) {
      ops::column_statistics(context, x.view(), mean.view(), variance.view());
      ops::batch_norm_forward(context, x.view(), mean.view(), variance.view(), weight.view(),
                              weight.view(), 1e-5, ops::Activation::kRelu, y.view());
    } else {
      ops::batch_norm_backward_sums(context, x.view(), mean.view(), variance.view(), 1e-5, y.view(),
                                    dy.view(), dweight.view(), dbias.view());
      ops::batch_norm_backward_input(context, x.view(), mean.view(), variance.view(), weight.view(),
                                     1e-5, y.view(), dy.view(), dweight.view(), dbias.view(),
                                     dy.view());
    }
    benchmark::ClobberMemory();
  }
  // Reads x twice and writes y; or reads x, y, dy twice and writes dx.
  rate(state, shape.count() * (kPass == Pass::kForward ? 3 : 7), sizeof(T));
}

template <typename T, Pass kPass>
void group_norm(benchmark::State& state) {
  const ops::GroupNormShape shape{state.range(0), state.range(2) * state.range(2), state.range(1),
                                  8};
  ops::Context context(1);
  Values<T> x(shape.tensor());
  Values<T> y(shape.tensor());
  Values<T> weight({shape.channels});
  Values<Compute<T>> mean({shape.images, shape.groups});
  Values<Compute<T>> rstd({shape.images, shape.groups});
  Values<Compute<T>> dweight({shape.channels});
  Values<Compute<T>> dbias({shape.channels});
  for (auto _ : state) {
    if constexpr (kPass == Pass::kForward) {
      ops::group_norm_forward(context, shape, x.view(), weight.view(), weight.view(), 1e-5,
                              y.view(), mean.view(), rstd.view());
    } else {
      ops::group_norm_backward_weight(context, shape, x.view(), mean.view(), rstd.view(), y.view(),
                                      dweight.view(), dbias.view(), ops::Accumulate::kOverwrite);
      ops::group_norm_backward_input(context, shape, x.view(), weight.view(), mean.view(),
                                     rstd.view(), y.view(), y.view());
    }
    benchmark::ClobberMemory();
  }
  rate(state, shape.tensor().count() * (kPass == Pass::kForward ? 2 : 5), sizeof(T));
}

/// Layers of a small CIFAR network, of LeNet and of ResNet-50.
void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"images", "in", "out", "size", "window", "stride", "padding", "threads"});
  for (const int threads : {1, 2}) {
    benchmark->Args({128, 3, 32, 32, 3, 1, 1, threads})
        ->Args({128, 32, 32, 32, 3, 1, 1, threads})
        ->Args({128, 32, 64, 16, 3, 1, 1, threads})
        ->Args({128, 64, 64, 16, 3, 1, 1, threads});
  }
  benchmark->Args({64, 1, 20, 28, 5, 1, 0, 1})
      ->Args({64, 20, 50, 12, 5, 1, 0, 1})
      ->Args({8, 3, 64, 224, 7, 2, 3, 1})
      ->Args({8, 64, 256, 56, 1, 1, 0, 1})
      ->Args({8, 64, 64, 56, 3, 1, 1, 1})
      ->Args({8, 256, 512, 56, 1, 2, 0, 1})
      ->Args({8, 128, 128, 56, 3, 2, 1, 1})
      ->Args({8, 1024, 256, 14, 1, 1, 0, 1})
      ->Args({8, 2048, 512, 7, 1, 1, 0, 1})
      ->Args({8, 512, 512, 7, 3, 1, 1, 1})
      ->UseRealTime();
}

/// Images of the CIFAR network and of ResNet-50.
void image_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"images", "channels", "size"})
      ->Args({128, 32, 32})
      ->Args({128, 64, 16})
      ->Args({8, 256, 56})
      ->UseRealTime();
}

BENCHMARK(convolution<float, Pass::kForward>)->Apply(sizes);
BENCHMARK(convolution<float, Pass::kInput>)->Apply(sizes);
BENCHMARK(convolution<float, Pass::kWeight>)->Apply(sizes);
BENCHMARK(convolution<BFloat16, Pass::kForward>)->Apply(sizes);
BENCHMARK(convolution<BFloat16, Pass::kInput>)->Apply(sizes);
BENCHMARK(convolution<BFloat16, Pass::kWeight>)->Apply(sizes);
BENCHMARK(max_pool<float, Pass::kForward>)->Apply(image_sizes);
BENCHMARK(max_pool<float, Pass::kInput>)->Apply(image_sizes);
BENCHMARK(batch_norm<float, Pass::kForward>)->Apply(image_sizes);
BENCHMARK(batch_norm<float, Pass::kInput>)->Apply(image_sizes);
BENCHMARK(batch_norm<BFloat16, Pass::kForward>)->Apply(image_sizes);
BENCHMARK(batch_norm<BFloat16, Pass::kInput>)->Apply(image_sizes);
BENCHMARK(group_norm<float, Pass::kForward>)->Apply(image_sizes);
BENCHMARK(group_norm<float, Pass::kInput>)->Apply(image_sizes);

}  // namespace

BENCHMARK_MAIN();
