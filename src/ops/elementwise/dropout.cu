#include "strata/ops/dropout.hpp"

#include "checks.hpp"
#include "cuda/chunks.hpp"
#include "cuda/map.hpp"
#include "cuda/ops.hpp"
#include "cuda/resources.hpp"
#include "elementwise/dropout_threshold.hpp"

namespace strata::ops::cuda {
namespace {

struct PhiloxKey {
  std::uint32_t first;
  std::uint32_t second;
};

struct PhiloxWords {
  std::uint32_t at[4];
};

/// RandomStream::words() of the stream with this key. Source: as there.
__device__ PhiloxWords philox(PhiloxKey key, std::uint64_t low, std::uint64_t high) {
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57U;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
  PhiloxWords c{{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                 static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * c.at[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * c.at[2];
    c = {{static_cast<std::uint32_t>(product1 >> 32) ^ c.at[1] ^ key.first,
          static_cast<std::uint32_t>(product1),
          static_cast<std::uint32_t>(product0 >> 32) ^ c.at[3] ^ key.second,
          static_cast<std::uint32_t>(product0)}};
    key.first += kWeyl0;
    key.second += kWeyl1;
  }
  return c;
}

/// Words that one Philox call gives.
constexpr std::int64_t kBlock = 4;

/// Runs of `run` elements that are contiguous in the full tensor, `runs_of_row` in each row. The
/// first element of run i of a row has number first + i * of.
struct Runs {
  std::int64_t count = 0;
  std::int64_t runs_of_row = 0;
  std::int64_t run = 0;
  /// Its sample number is relative to the origin.
  SampleRow first_row;
  std::int64_t first = 0;
  std::int64_t of = 0;
  /// Upper bound of Philox calls for a run, whatever its start.
  std::int64_t calls = 0;
};

/// The operands: x, a bias added before dropout and a residual added after it; both may be null.
template <typename From, typename T>
struct Operands {
  using C = Compute<T>;

  const From* x = nullptr;
  const T* bias = nullptr;
  const T* residual = nullptr;
  T* y = nullptr;
  std::uint8_t* mask = nullptr;
  std::uint32_t threshold = 0;
  C scale = 1;

  /// Computes elements [i, i + kWidth), from `place` of a run on, with their random words. Rounds
  /// after each step.
  template <int kWidth>
  __device__ void drop(std::int64_t i, std::int64_t place, const std::uint32_t* words) const {
    const Chunk<From, kWidth> from = elements_at<kWidth>(x + i);
    C values[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] = value_of(from.at[k]);
    }
    if (bias != nullptr) {
      const Chunk<T, kWidth> biases = elements_at<kWidth>(bias + place);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        values[k] += value_of(biases.at[k]);
      }
    }
    Chunk<std::uint8_t, kWidth> kept;
    Chunk<T, kWidth> to;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      kept.at[k] = words[k] >= threshold ? 1 : 0;
      to.at[k] = to_storage<T>(kept.at[k] != 0 ? value_of(to_storage<T>(values[k])) * scale : C{0});
    }
    if (residual != nullptr) {
      const Chunk<T, kWidth> residuals = elements_at<kWidth>(residual + i);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        to.at[k] = to_storage<T>(value_of(to.at[k]) + value_of(residuals.at[k]));
      }
    }
    store_elements(mask + i, kept);
    store_elements(y + i, to);
  }
};

/// A thread generates four words and computes their elements, kWidth at a time; with width 1 the
/// first and last words may be outside the run.
template <int kWidth, typename From, typename T>
__global__ void forward_kernel(Runs runs, const std::int64_t* origin, PhiloxKey key,
                               Operands<From, T> operands) {
  const std::int64_t thread = thread_number();
  const std::int64_t index = thread / runs.calls;
  if (index >= runs.count) {
    return;
  }
  const std::int64_t first_row =
      (*origin + runs.first_row.sample) * runs.first_row.rows_of_sample + runs.first_row.offset;
  const std::int64_t row = first_row + index / runs.runs_of_row;
  const std::int64_t element = runs.first + index % runs.runs_of_row * runs.of;
  const std::int64_t block = element / kBlock + thread % runs.calls;
  const PhiloxWords words =
      philox(key, static_cast<std::uint64_t>(block), static_cast<std::uint64_t>(row));
#pragma unroll
  for (int word = 0; word < kBlock; word += kWidth) {
    const std::int64_t place = block * kBlock + word - element;
    if (place >= 0 && place < runs.run) {
      operands.template drop<kWidth>(index * runs.run + place, place, words.at + word);
    }
  }
}

__global__ void origin_kernel(std::int64_t sample, std::int64_t* origin) {
  *origin = sample;
}

template <typename C>
struct Backward {
  C scale;

  template <typename T>
  __device__ void operator()(T dy, std::uint8_t kept, T& dx) const {
    dx = to_storage<T>(kept != 0 ? value_of(dy) * scale : C{0});
  }
};

/// Launches dropout over runs; sets their `calls`.
template <typename From, typename T>
void launch_forward(Context& context, const char* name, Runs runs, const SampleRow& first,
                    const RandomStream& stream, double probability, Operands<From, T> operands) {
  const CudaResources& state = context.cuda_resources();
  runs.first_row = first;
  runs.first_row.sample -= state.sample_origin();
  operands.threshold = dropout_threshold(probability);
  operands.scale = static_cast<Compute<T>>(1.0 / (1.0 - probability));
  const PhiloxKey key{stream.key()[0], stream.key()[1]};
  runs.calls = (runs.run + kBlock - 1) / kBlock;
  if (runs.run % kBlock == 0 && runs.first % kBlock == 0 && runs.of % kBlock == 0 &&
      begins_chunk<kBlock>(operands.x) && begins_chunk<kBlock>(operands.bias) &&
      begins_chunk<kBlock>(operands.residual) && begins_chunk<kBlock>(operands.y) &&
      begins_chunk<kBlock>(operands.mask)) {
    launch(context, name, grid_of(runs.count * runs.calls), forward_kernel<kBlock, From, T>, runs,
           state.origin(), key, operands);
    return;
  }
  // A run that starts within a call's words may need one more call.
  ++runs.calls;
  launch(context, name, grid_of(runs.count * runs.calls), forward_kernel<1, From, T>, runs,
         state.origin(), key, operands);
}

}  // namespace

void set_sample_origin(Context& context, std::int64_t sample) {
  context.cuda_resources().set_origin(sample);
  launch(context, "set_sample_origin", {1, 1}, origin_kernel, sample,
         context.cuda_resources().origin());
}

void dropout_forward(Context& context, const ConstTensorView& x, double probability,
                     const RandomStream& stream, const SampleRow& first, const TensorView& y,
                     const TensorView& mask, const ColumnSlice& columns) {
  const std::int64_t rows = x.shape().rank() == 0 ? 1 : x.shape()[0];
  Runs runs;
  runs.run = columns.of == 0 ? x.count() / rows : x.shape().back();
  runs.count = x.count() / runs.run;
  runs.runs_of_row = runs.count / rows;
  runs.first = columns.first;
  runs.of = columns.of;
  with_device_type(x.dtype(), [&]<typename T>(T) {
    launch_forward(
        context, "dropout_forward", runs, first, stream, probability,
        Operands<T, T>{
            .x = x.device<T>(), .y = y.device<T>(), .mask = mask.device<std::uint8_t>()});
  });
}

void bias_dropout_residual(Context& context, const ConstTensorView& sum,
                           const ConstTensorView& bias, const ConstTensorView& residual,
                           double probability, const RandomStream& stream, const SampleRow& first,
                           const TensorView& y, const TensorView& mask) {
  const Rows shape = rows_of(y.shape());
  Runs runs;
  runs.count = shape.rows;
  runs.runs_of_row = 1;
  runs.run = shape.columns;
  with_device_type(y.dtype(), [&]<typename T>(T) {
    with_device_elements<T>(sum, [&]<typename From>(const From* from) {
      launch_forward(context, "bias_dropout_residual", runs, first, stream, probability,
                     Operands<From, T>{.x = from,
                                       .bias = device_or_null<T>(bias),
                                       .residual = device_or_null<T>(residual),
                                       .y = y.device<T>(),
                                       .mask = mask.device<std::uint8_t>()});
    });
  });
}

void dropout_backward(Context& context, const ConstTensorView& dy, const ConstTensorView& mask,
                      double probability, const TensorView& dx) {
  with_device_type(dy.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    map(context, "dropout_backward", dy.count(),
        Backward<C>{static_cast<C>(1.0 / (1.0 - probability))}, In<T>{dy.device<T>()},
        In<std::uint8_t>{mask.device<std::uint8_t>()}, Out<T>{dx.device<T>()});
  });
}

}  // namespace strata::ops::cuda
