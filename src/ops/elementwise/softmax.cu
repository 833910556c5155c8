#include "strata/ops/activation.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "cuda/rows.hpp"

namespace strata::ops::cuda {
namespace {

template <typename T>
struct Forward {
  const T* x;
  std::int64_t columns;
  T* y;

  __device__ void operator()(const auto& threads, std::int64_t row) const {
    using C = Compute<T>;
    const T* const from = x + row * columns;
    T* const to = y + row * columns;
    C largest = value_of(from[0]);
    threads.for_each(columns,
                     [&](std::int64_t i) { largest = larger(largest, value_of(from[i])); });
    largest = threads.largest(largest);
    C part{0};
    threads.for_each(columns,
                     [&](std::int64_t i) { part += exponential(value_of(from[i]) - largest); });
    const C inverse = static_cast<C>(1.0 / threads.sum(static_cast<double>(part)));
    threads.for_each(columns, [&](std::int64_t i) {
      to[i] = to_storage<T>(exponential(value_of(from[i]) - largest) * inverse);
    });
  }
};

template <typename T>
struct Backward {
  const T* y;
  const T* dy;
  std::int64_t columns;
  T* dx;

  __device__ void operator()(const auto& threads, std::int64_t row) const {
    using C = Compute<T>;
    const std::int64_t first = row * columns;
    C part{0};
    threads.for_each(columns, [&](std::int64_t i) {
      part = fused(value_of(dy[first + i]), value_of(y[first + i]), part);
    });
    const C dot = static_cast<C>(threads.sum(static_cast<double>(part)));
    threads.for_each(columns, [&](std::int64_t i) {
      dx[first + i] = to_storage<T>(value_of(y[first + i]) * (value_of(dy[first + i]) - dot));
    });
  }
};

}  // namespace

void softmax_forward(Context& context, const ConstTensorView& x, const TensorView& y) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    for_each_row(context, "softmax_forward", shape.rows, shape.columns,
                 Forward<T>{x.device<T>(), shape.columns, y.device<T>()});
  });
}

void softmax_backward(Context& context, const ConstTensorView& y, const ConstTensorView& dy,
                      const TensorView& dx) {
  const Rows shape = rows_of(y.shape());
  with_device_type(y.dtype(), [&]<typename T>(T) {
    for_each_row(context, "softmax_backward", shape.rows, shape.columns,
                 Backward<T>{y.device<T>(), dy.device<T>(), shape.columns, dx.device<T>()});
  });
}

}  // namespace strata::ops::cuda
