#include "strata/ops/dropout.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "lanes.hpp"

namespace strata::ops {
namespace {

// Words are made this many at a time; a multiple of a Philox block's four.
constexpr std::int64_t kWords = 1024;

struct Choice {
  const RandomStream& stream;
  std::uint32_t threshold;
};

template <typename T>
void drop_row(const Choice& choice, std::int64_t sample, std::int64_t n, T scale, const T* x, T* y,
              std::uint8_t* mask) {
  std::array<std::uint32_t, kWords> words;
  for (std::int64_t begin = 0; begin < n; begin += kWords) {
    const std::int64_t count = std::min(kWords, n - begin);
    choice.stream.fill(static_cast<std::uint64_t>(begin / 4), static_cast<std::uint64_t>(sample),
                       std::span(words).first(static_cast<std::size_t>(count)));
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      const bool kept = words[static_cast<std::size_t>(i)] >= choice.threshold;
      mask[begin + i] = kept ? std::uint8_t{1} : std::uint8_t{0};
      y[begin + i] = kept ? x[begin + i] * scale : T{0};
    }
  }
}

void require_probability(double probability) {
  require(probability >= 0.0 && probability < 1.0, "dropout with probability {}", probability);
}

}  // namespace

void dropout_forward(Context& context, const ConstTensorView& x, double probability,
                     const RandomStream& stream, std::int64_t first_row, const TensorView& y,
                     const TensorView& mask) {
  require_probability(probability);
  require_like(y, x.dtype(), x.shape(), "dropout's y");
  require_like(mask, DType::kUint8, x.shape(), "dropout's mask");
  if (x.count() == 0) {
    return;
  }
  const std::int64_t rows = x.shape().rank() == 0 ? 1 : x.shape()[0];
  const std::int64_t n = x.count() / rows;
  const Choice choice{stream,
                      static_cast<std::uint32_t>(std::min(probability * 0x1p32, 0xFFFFFFFFp0))};
  with_floating(x.dtype(), [&]<typename T>(T) {
    const T scale = static_cast<T>(1.0 / (1.0 - probability));
    const T* from = x.host<T>().data();
    T* to = y.host<T>().data();
    std::uint8_t* kept = mask.host<std::uint8_t>().data();
    parallel_for(context, rows, row_grain(n), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        drop_row(choice, first_row + row, n, scale, from + row * n, to + row * n, kept + row * n);
      }
    });
  });
}

void dropout_backward(Context& context, const ConstTensorView& dy, const ConstTensorView& mask,
                      double probability, const TensorView& dx) {
  require_probability(probability);
  require_like(mask, DType::kUint8, dy.shape(), "dropout's mask");
  require_like(dx, dy.dtype(), dy.shape(), "dropout's dx");
  with_floating(dy.dtype(), [&]<typename T>(T) {
    const T scale = static_cast<T>(1.0 / (1.0 - probability));
    const T* incoming = dy.host<T>().data();
    const std::uint8_t* kept = mask.host<std::uint8_t>().data();
    T* outgoing = dx.host<T>().data();
    parallel_for(context, dy.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        outgoing[i] = kept[i] != 0 ? incoming[i] * scale : T{0};
      }
    });
  });
}

}  // namespace strata::ops
