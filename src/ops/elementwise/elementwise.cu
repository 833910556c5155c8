#include "strata/ops/elementwise.hpp"

#include "checks.hpp"
#include "cuda/map.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

struct Add {
  template <typename T>
  __device__ void operator()(T x, T& y) const {
    y = to_storage<T>(value_of(y) + value_of(x));
  }
};

template <typename T>
struct Scale {
  Compute<T> factor;
  __device__ void operator()(T x, T& y) const {
    y = to_storage<T>(factor * value_of(x) + Compute<T>{0});
  }
};

template <typename T>
struct AddScaled {
  Compute<T> factor;
  __device__ void operator()(T x, T& y) const {
    y = to_storage<T>(factor * value_of(x) + value_of(y));
  }
};

struct Convert {
  template <typename From, typename To>
  __device__ void operator()(From x, To& y) const {
    if constexpr (std::is_same_v<From, double> && std::is_same_v<To, __nv_bfloat16>) {
      // Directly: rounding to float first would double-round.
      y = __double2bfloat16(x);
    } else {
      y = to_storage<To>(static_cast<Compute<To>>(value_of(x)));
    }
  }
};

/// One thread for kWidth elements of a row. bias and residual may be null.
template <int kWidth, typename From, typename T>
__global__ void bias_residual_kernel(std::int64_t count, std::int64_t columns, const From* sum,
                                     const T* bias, const T* residual, T* y) {
  const std::int64_t first = thread_number() * kWidth;
  if (first >= count) {
    return;
  }
  const Chunk<From, kWidth> sums = elements_at<kWidth>(sum + first);
  Compute<T> values[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    values[i] = value_of(sums.at[i]);
  }
  if (bias != nullptr) {
    const Chunk<T, kWidth> biases = elements_at<kWidth>(bias + first % columns);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] += value_of(biases.at[i]);
    }
  }
  if (residual != nullptr) {
    const Chunk<T, kWidth> residuals = elements_at<kWidth>(residual + first);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] += value_of(residuals.at[i]);
    }
  }
  Chunk<T, kWidth> to;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    to.at[i] = to_storage<T>(values[i]);
  }
  store_elements(y + first, to);
}

}  // namespace

void fill_zero(Context& context, const TensorView& x) {
  require_memory_space(context, x);
  if (x.bytes() > 0) {
    check(cudaMemsetAsync(x.raw(), 0, static_cast<std::size_t>(x.bytes()), stream_of(context)),
          "fill_zero");
  }
}

void copy(Context& context, const ConstTensorView& x, const TensorView& y) {
  require_memory_space(context, x);
  require_memory_space(context, y);
  if (x.raw() != y.raw() && x.bytes() > 0) {
    check(cudaMemcpyAsync(y.raw(), x.raw(), static_cast<std::size_t>(x.bytes()),
                          cudaMemcpyDeviceToDevice, stream_of(context)),
          "copy");
  }
}

void add(Context& context, const ConstTensorView& x, const TensorView& y) {
  with_device_type(x.dtype(), [&]<typename T>(T) {
    map(context, "add", x.count(), Add{}, In<T>{x.device<T>()}, InOut<T>{y.device<T>()});
  });
}

void scaled(Context& context, double factor, const ConstTensorView& x, const TensorView& y,
            Accumulate accumulate) {
  with_device_type(x.dtype(), [&]<typename T>(T) {
    const auto times = static_cast<Compute<T>>(factor);
    const In<T> from{x.device<T>()};
    T* const into = y.device<T>();
    if (accumulate == Accumulate::kAdd) {
      map(context, "scaled", x.count(), AddScaled<T>{times}, from, InOut<T>{into});
    } else {
      map(context, "scaled", x.count(), Scale<T>{times}, from, Out<T>{into});
    }
  });
}

void convert(Context& context, const ConstTensorView& x, const TensorView& y) {
  with_device_type(x.dtype(), [&]<typename From>(From) {
    with_device_type(y.dtype(), [&]<typename To>(To) {
      map(context, "convert", x.count(), Convert{}, In<From>{x.device<From>()},
          Out<To>{y.device<To>()});
    });
  });
}

void add_bias_residual(Context& context, const ConstTensorView& sum, const ConstTensorView& bias,
                       const ConstTensorView& residual, const TensorView& y) {
  const std::int64_t columns = rows_of(y.shape()).columns;
  with_device_type(y.dtype(), [&]<typename T>(T) {
    with_device_elements<T>(sum, [&]<typename From>(const From* from) {
      const T* const offsets = device_or_null<T>(bias);
      const T* const others = device_or_null<T>(residual);
      T* const to = y.device<T>();
      with_width(
          columns,
          [&](auto width) {
            launch(context, "add_bias_residual", grid_of(y.count() / width),
                   bias_residual_kernel<width(), From, T>, y.count(), columns, from, offsets,
                   others, to);
          },
          from, offsets, others, to);
    });
  });
}

}  // namespace strata::ops::cuda
