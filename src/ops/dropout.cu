#include <algorithm>

#include "strata/ops/dropout.hpp"

#include "cuda_map.hpp"
#include "cuda_ops.hpp"

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

/// Runs of `run` elements that lie side by side in the whole; `runs_of_row` of them a row. The
/// first element of run i of a row has the number first + i * of.
struct Runs {
  std::int64_t count = 0;
  std::int64_t runs_of_row = 0;
  std::int64_t run = 0;
  /// Its sample counts from the origin.
  SampleRow first_row;
  std::int64_t first = 0;
  std::int64_t of = 0;
  /// Philox calls for a run, wherever it begins.
  std::int64_t calls = 0;
};

/// A thread makes four words, of which the first and the last of a run may lie beyond it.
template <typename T>
__global__ void forward_kernel(Runs runs, const std::int64_t* origin, PhiloxKey key,
                               std::uint32_t threshold, Compute<T> scale, const T* x, T* y,
                               std::uint8_t* mask) {
  using C = Compute<T>;
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
  for (int word = 0; word < kBlock; ++word) {
    const std::int64_t place = block * kBlock + word - element;
    if (place >= 0 && place < runs.run) {
      const std::int64_t i = index * runs.run + place;
      const bool kept = words.at[word] >= threshold;
      mask[i] = kept ? 1 : 0;
      y[i] = stored<T>(kept ? value_of(x[i]) * scale : C{0});
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
    dx = stored<T>(kept != 0 ? value_of(dy) * scale : C{0});
  }
};

}  // namespace

void set_sample_origin(Context& context, std::int64_t sample) {
  context.cuda_state().set_origin(sample);
  launch(context, "set_sample_origin", {1, 1}, origin_kernel, sample,
         context.cuda_state().origin());
}

void dropout_forward(Context& context, const ConstTensorView& x, double probability,
                     const RandomStream& stream, const SampleRow& first, const TensorView& y,
                     const TensorView& mask, const ColumnSlice& columns) {
  const std::int64_t rows = x.shape().rank() == 0 ? 1 : x.shape()[0];
  Runs runs;
  runs.run = columns.of == 0 ? x.count() / rows : x.shape().back();
  runs.count = x.count() / runs.run;
  runs.runs_of_row = runs.count / rows;
  const CudaState& state = context.cuda_state();
  runs.first_row = first;
  runs.first_row.sample -= state.sample_origin();
  runs.first = columns.first;
  runs.of = columns.of;
  // A run that begins within a call's words may need one more.
  runs.calls = (runs.run + kBlock - 1) / kBlock + 1;
  const auto threshold = static_cast<std::uint32_t>(std::min(probability * 0x1p32, 0xFFFFFFFFp0));
  const PhiloxKey key{stream.key()[0], stream.key()[1]};
  with_device_type(x.dtype(), [&]<typename T>(T) {
    const auto scale = static_cast<Compute<T>>(1.0 / (1.0 - probability));
    launch(context, "dropout_forward", grid_of(runs.count * runs.calls), forward_kernel<T>, runs,
           state.origin(), key, threshold, scale, x.device<T>(), y.device<T>(),
           mask.device<std::uint8_t>());
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
