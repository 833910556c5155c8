#include "strata/ops/dropout.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "elementwise/dropout_threshold.hpp"
#include "observed.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

// Random words that are generated at a time; a multiple of a Philox block's four.
constexpr std::int64_t kWords = 1024;
constexpr std::int64_t kBlockWords = 4;

struct Choice {
  const RandomStream& stream;
  std::uint32_t threshold;
};

/// Consecutive elements of one row, numbered from `element`.
template <typename T>
void drop_run(const Choice& choice, std::int64_t row, std::int64_t element, std::int64_t length,
              Compute<T> scale, const T* x, T* y, std::uint8_t* mask) {
  std::array<std::uint32_t, kWords + kBlockWords> words;
  const std::int64_t before = element % kBlockWords;
  for (std::int64_t begin = 0; begin < length; begin += kWords) {
    const std::int64_t count = std::min(kWords, length - begin);
    choice.stream.fill(static_cast<std::uint64_t>((element + begin) / kBlockWords),
                       static_cast<std::uint64_t>(row),
                       std::span(words).first(static_cast<std::size_t>(before + count)));
    const std::uint32_t* const word = words.data() + before;
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      const bool kept = word[i] >= choice.threshold;
      mask[begin + i] = kept ? std::uint8_t{1} : std::uint8_t{0};
      const Compute<T> scaled = static_cast<Compute<T>>(x[begin + i]) * scale;
      y[begin + i] = to_storage<T>(kept ? scaled : Compute<T>{0});
    }
  }
}

void require_probability(double probability) {
  require(probability >= 0.0 && probability < 1.0, "dropout with probability {}", probability);
}

}  // namespace

void set_sample_origin(Context& context, std::int64_t sample) {
  // On the CPU every call gets its sample numbers as arguments.
  static_cast<void>(run_on_gpu<cuda::set_sample_origin>(context, sample));
}

void dropout_forward(Context& context, const ConstTensorView& x, double probability,
                     const RandomStream& stream, const SampleRow& first, const TensorView& y,
                     const TensorView& mask, const ColumnSlice& columns) {
  const Observed observed(context, "dropout_forward", x, y, mask);
  require_probability(probability);
  require_like(y, x.dtype(), x.shape(), "dropout's y");
  require_like(mask, DType::kUint8, x.shape(), "dropout's mask");
  if (x.count() == 0) {
    return;
  }
  const std::int64_t rows = x.shape().rank() == 0 ? 1 : x.shape()[0];
  const std::int64_t n = x.count() / rows;
  // A run of elements that are contiguous in the full tensor: a row, or the slice's part of it.
  const std::int64_t run = columns.of == 0 ? n : x.shape().back();
  require(columns.first >= 0 && (columns.of == 0 || columns.first + run <= columns.of),
          "dropout of columns [{}, {}) of {}", columns.first, columns.first + run, columns.of);
  if (observed.handled_by<cuda::dropout_forward>(x, probability, stream, first, y, mask, columns)) {
    return;
  }
  const Choice choice{stream, dropout_threshold(probability)};
  const std::int64_t first_row = first.number();
  with_stored(x.dtype(), [&]<typename T>(T) {
    const auto scale = static_cast<Compute<T>>(1.0 / (1.0 - probability));
    const T* from = x.host<T>().data();
    T* to = y.host<T>().data();
    std::uint8_t* kept = mask.host<std::uint8_t>().data();
    parallel_for_rows(context, rows, n, [=](std::int64_t row) {
      for (std::int64_t i = row * n; i < (row + 1) * n; i += run) {
        const std::int64_t element = columns.first + (i - row * n) / run * columns.of;
        drop_run(choice, first_row + row, element, run, scale, from + i, to + i, kept + i);
      }
    });
  });
}

void bias_dropout_residual(Context& context, const ConstTensorView& sum,
                           const ConstTensorView& bias, const ConstTensorView& residual,
                           double probability, const RandomStream& stream, const SampleRow& first,
                           const TensorView& y, const TensorView& mask) {
  const Observed observed(context, "bias_dropout_residual", sum, bias, residual, y, mask);
  require_probability(probability);
  require_bias_residual(sum, bias, residual, y);
  require(y.shape().rank() == 2, "dropout behind a bias of {}", y.shape().text());
  require_like(mask, DType::kUint8, y.shape(), "dropout's mask");
  if (observed.handled_by<cuda::bias_dropout_residual>(sum, bias, residual, probability, stream,
                                                       first, y, mask)) {
    return;
  }
  add_bias_residual(context, sum, bias, {}, y);
  dropout_forward(context, y, probability, stream, first, y, mask);
  if (!residual.empty()) {
    add_bias_residual(context, y, {}, residual, y);
  }
}

void dropout_backward(Context& context, const ConstTensorView& dy, const ConstTensorView& mask,
                      double probability, const TensorView& dx) {
  const Observed observed(context, "dropout_backward", dy, mask, dx);
  require_probability(probability);
  require_like(mask, DType::kUint8, dy.shape(), "dropout's mask");
  require_like(dx, dy.dtype(), dy.shape(), "dropout's dx");
  if (observed.handled_by<cuda::dropout_backward>(dy, mask, probability, dx)) {
    return;
  }
  with_stored(dy.dtype(), [&]<typename T>(T) {
    const auto scale = static_cast<Compute<T>>(1.0 / (1.0 - probability));
    const T* incoming = dy.host<T>().data();
    const std::uint8_t* kept = mask.host<std::uint8_t>().data();
    T* outgoing = dx.host<T>().data();
    for_each_element(context, dy.count(), [=](std::int64_t i) {
      const Compute<T> scaled = static_cast<Compute<T>>(incoming[i]) * scale;
      outgoing[i] = to_storage<T>(kept[i] != 0 ? scaled : Compute<T>{0});
    });
  });
}

}  // namespace strata::ops
