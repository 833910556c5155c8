#include "strata/ops/pooling.hpp"

#include "convolution/cuda_windows.hpp"
#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

/// An element of channels-last images.
struct Element {
  std::int64_t image;
  std::int64_t row;
  std::int64_t column;
  std::int64_t channel;
};

__device__ Element element_of(std::int64_t i, std::int64_t height, std::int64_t width,
                              std::int64_t channels) {
  return {i / channels / width / height, i / channels / width % height, i / channels % width,
          i % channels};
}

/// Calls function(tap, index in x) for the taps of y's element, in order.
template <typename Function>
__device__ void for_each_seen(const PoolingShape& shape, const Element& out,
                              const Function& function) {
  for (std::int64_t i = 0; i < shape.height.window; ++i) {
    const std::int64_t row = visible_keys(shape.height, out.row, i);
    for (std::int64_t j = 0; j < shape.width.window; ++j) {
      const std::int64_t column = visible_keys(shape.width, out.column, j);
      if (is_within(shape.height, row) && is_within(shape.width, column)) {
        function(i * shape.width.window + j,
                 ((out.image * shape.height.in + row) * shape.width.in + column) * shape.channels +
                     out.channel);
      }
    }
  }
}

template <typename T>
__global__ void max_forward_kernel(std::int64_t count, PoolingShape shape, const T* x, T* y,
                                   std::uint8_t* at) {
  using C = Compute<T>;
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  bool begun = false;
  C largest{0};
  std::int64_t found = 0;
  for_each_seen(shape, element_of(i, shape.height.out, shape.width.out, shape.channels),
                [&](std::int64_t place, std::int64_t from) {
                  const C value = value_of(x[from]);
                  // NaNs propagate: the first NaN is the maximum.
                  if (!begun || (!(value <= largest) && largest == largest)) {
                    largest = value;
                    found = place;
                  }
                  begun = true;
                });
  y[i] = to_storage<T>(largest);
  at[i] = static_cast<std::uint8_t>(found);
}

template <typename T>
__global__ void average_forward_kernel(std::int64_t count, PoolingShape shape, const T* x, T* y) {
  using C = Compute<T>;
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  C sum{0};
  std::int64_t elements = 0;
  for_each_seen(shape, element_of(i, shape.height.out, shape.width.out, shape.channels),
                [&](std::int64_t, std::int64_t from) {
                  sum += value_of(x[from]);
                  ++elements;
                });
  y[i] = to_storage<T>(sum / static_cast<C>(elements));
}

/// dy where the element was the window's largest.
template <typename T>
struct MaxTerm {
  const T* dy;
  const std::uint8_t* at;

  __device__ Compute<T> operator()(const PoolingShape&, std::int64_t i, std::int64_t, std::int64_t,
                                   std::int64_t place) const {
    return at[i] == place ? value_of(dy[i]) : Compute<T>{0};
  }
};

/// The element's share of dy.
template <typename T>
struct AverageTerm {
  const T* dy;

  __device__ Compute<T> operator()(const PoolingShape& shape, std::int64_t i, std::int64_t row,
                                   std::int64_t column, std::int64_t) const {
    return value_of(dy[i]) / static_cast<Compute<T>>(elements_within(shape.height, row) *
                                                     elements_within(shape.width, column));
  }
};

/// dx = the sum over an element's covering windows, in order: down, then across.
template <typename T, typename Term>
__global__ void backward_kernel(std::int64_t count, PoolingShape shape, Term term, T* dx) {
  using C = Compute<T>;
  const std::int64_t index = thread_number();
  if (index >= count) {
    return;
  }
  const Element in = element_of(index, shape.height.in, shape.width.in, shape.channels);
  C sum{0};
  // A later tap belongs to an earlier window.
  for (std::int64_t i = shape.height.window - 1; i >= 0; --i) {
    const std::int64_t row = window_at(shape.height, in.row, i);
    for (std::int64_t j = shape.width.window - 1; row >= 0 && j >= 0; --j) {
      const std::int64_t column = window_at(shape.width, in.column, j);
      if (column >= 0) {
        const std::int64_t out =
            ((in.image * shape.height.out + row) * shape.width.out + column) * shape.channels +
            in.channel;
        sum += term(shape, out, row, column, i * shape.width.window + j);
      }
    }
  }
  dx[index] = to_storage<T>(sum);
}

template <typename T, typename Term>
void backward(Context& context, const char* name, const PoolingShape& shape, const Term& term,
              const TensorView& dx) {
  launch(context, name, grid_of(dx.count()), backward_kernel<T, Term>, dx.count(), shape, term,
         dx.device<T>());
}

}  // namespace

void max_pool_forward(Context& context, const PoolingShape& shape, const ConstTensorView& x,
                      const TensorView& y, const TensorView& at) {
  with_device_type(x.dtype(), [&]<typename T>(T) {
    launch(context, "max_pool_forward", grid_of(y.count()), max_forward_kernel<T>, y.count(), shape,
           x.device<T>(), y.device<T>(), at.device<std::uint8_t>());
  });
}

void max_pool_backward(Context& context, const PoolingShape& shape, const ConstTensorView& dy,
                       const ConstTensorView& at, const TensorView& dx) {
  with_device_type(dy.dtype(), [&]<typename T>(T) {
    backward<T>(context, "max_pool_backward", shape,
                MaxTerm<T>{dy.device<T>(), at.device<std::uint8_t>()}, dx);
  });
}

void average_pool_forward(Context& context, const PoolingShape& shape, const ConstTensorView& x,
                          const TensorView& y) {
  with_device_type(x.dtype(), [&]<typename T>(T) {
    launch(context, "average_pool_forward", grid_of(y.count()), average_forward_kernel<T>,
           y.count(), shape, x.device<T>(), y.device<T>());
  });
}

void average_pool_backward(Context& context, const PoolingShape& shape, const ConstTensorView& dy,
                           const TensorView& dx) {
  with_device_type(dy.dtype(), [&]<typename T>(T) {
    backward<T>(context, "average_pool_backward", shape, AverageTerm<T>{dy.device<T>()}, dx);
  });
}

}  // namespace strata::ops::cuda
