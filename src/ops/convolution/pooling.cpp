#include "strata/ops/pooling.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"
#include "windows.hpp"

namespace strata::ops {
namespace {

/// Channels whose results stay in registers over a window's taps.
constexpr std::int64_t kChannels = 128;

/// An integer as wide as T, so that indices and values use equal SIMD vectors.
template <typename T>
using Place = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;

void require_shape(const PoolingShape& shape) {
  require_axis(shape.height, "pooling's height");
  require_axis(shape.width, "pooling's width");
  for (const WindowAxis& axis : {shape.height, shape.width}) {
    for (const std::int64_t out : {std::int64_t{0}, axis.out - 1}) {
      const WindowPart part = window_part(axis, out);
      require(part.begin < part.end, "a window of {}, padding {}, lies outside of {} elements",
              axis.window, axis.padding, axis.in);
    }
  }
}

/// A window along one axis that covers an element, and the element's index in it.
struct CoveringWindow {
  std::int64_t out = 0;
  std::int64_t place = 0;
};

/// The covering windows of every element of an axis, in order.
std::vector<std::vector<CoveringWindow>> covering_windows(const WindowAxis& axis) {
  std::vector<std::vector<CoveringWindow>> result(static_cast<std::size_t>(axis.in));
  for (std::int64_t out = 0; out < axis.out; ++out) {
    const WindowPart part = window_part(axis, out);
    for (std::int64_t place = part.begin; place < part.end; ++place) {
      result[static_cast<std::size_t>(part.first + place * axis.dilation)].push_back({out, place});
    }
  }
  return result;
}

/// Calls function(image and row, column, channel, count) for every run of channels of images'
/// pixels, on the context's threads.
template <typename Function>
void for_each_run(Context& context, std::int64_t rows, std::int64_t columns, std::int64_t channels,
                  const Function& function) {
  parallel_for_rows(context, rows, columns * channels, [&](std::int64_t row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      for (std::int64_t c = 0; c < channels; c += kChannels) {
        function(row, column, c, std::min(kChannels, channels - c));
      }
    }
  });
}

/// The in-image part of every window along one axis.
std::vector<WindowPart> parts_of(const WindowAxis& axis) {
  std::vector<WindowPart> parts;
  for (std::int64_t out = 0; out < axis.out; ++out) {
    parts.push_back(window_part(axis, out));
  }
  return parts;
}

/// The in-image parts of all windows.
class Windows {
 public:
  explicit Windows(const PoolingShape& shape)
      : shape_(shape), down_(parts_of(shape.height)), across_(parts_of(shape.width)) {}

  [[nodiscard]] std::int64_t count(std::int64_t row, std::int64_t column) const {
    const WindowPart& down = down_[static_cast<std::size_t>(row)];
    const WindowPart& across = across_[static_cast<std::size_t>(column)];
    return (down.end - down.begin) * (across.end - across.begin);
  }
  /// Calls function(place in the window, offset of the pixel) in order.
  template <typename Function>
  void for_each(std::int64_t image, std::int64_t row, std::int64_t column,
                const Function& function) const {
    const WindowPart& down = down_[static_cast<std::size_t>(row)];
    const WindowPart& across = across_[static_cast<std::size_t>(column)];
    for (std::int64_t i = down.begin; i < down.end; ++i) {
      const std::int64_t y = down.first + i * shape_.height.dilation;
      const std::int64_t first = (image * shape_.height.in + y) * shape_.width.in;
      for (std::int64_t j = across.begin; j < across.end; ++j) {
        const std::int64_t x = across.first + j * shape_.width.dilation;
        function(i * shape_.width.window + j, (first + x) * shape_.channels);
      }
    }
  }

 private:
  const PoolingShape& shape_;
  std::vector<WindowPart> down_;
  std::vector<WindowPart> across_;
};

template <typename C>
struct Largest {
  std::array<C, kChannels> value;
  std::array<Place<C>, kChannels> place;
};

template <typename T, typename C>
void take_first(const T* x, std::int64_t place, std::int64_t count, Largest<C>& largest) {
  C* const values = largest.value.data();
  store_terms(values, 0, count, [=](std::int64_t c) { return static_cast<C>(x[c]); });
  std::fill_n(largest.place.data(), count, static_cast<Place<C>>(place));
}

template <typename T, typename C>
void take_larger(const T* x, std::int64_t place, std::int64_t count, Largest<C>& largest) {
  C* const values = largest.value.data();
  Place<C>* const places = largest.place.data();
  const auto here = static_cast<Place<C>>(place);
#pragma omp simd
  for (std::int64_t c = 0; c < count; ++c) {
    const C value = static_cast<C>(x[c]);
    const C before = values[c];
    // NaNs propagate: the first NaN is the maximum.
    // NOLINTNEXTLINE(misc-redundant-expression): before == before is false for NaN.
    const bool larger = !(value <= before) & (before == before);
    values[c] = larger ? value : before;
    places[c] = larger ? here : places[c];
  }
}

/// dx[pixel] = the sum over its covering windows, in order, of term_of(offset in dy, windows along
/// both axes), which gives the term of each channel from that offset on.
template <typename T, typename Function>
void sum_over_windows(Context& context, const PoolingShape& shape, T* dx, const Function& term_of) {
  using C = Compute<T>;
  const auto down = covering_windows(shape.height);
  const auto across = covering_windows(shape.width);
  for_each_run(context, shape.images * shape.height.in, shape.width.in, shape.channels,
               [&](std::int64_t row, std::int64_t column, std::int64_t c, std::int64_t count) {
                 const std::int64_t image = row / shape.height.in;
                 const std::vector<CoveringWindow>& ys =
                     down[static_cast<std::size_t>(row % shape.height.in)];
                 const std::vector<CoveringWindow>& xs = across[static_cast<std::size_t>(column)];
                 T* const to = dx + (row * shape.width.in + column) * shape.channels + c;
                 const auto term = [&](const CoveringWindow& y, const CoveringWindow& x) {
                   const std::int64_t pixel =
                       (image * shape.height.out + y.out) * shape.width.out + x.out;
                   return term_of(pixel * shape.channels + c, y, x);
                 };
                 if (ys.size() == 1 && xs.size() == 1) {
                   store_terms(to, 0, count, term(ys[0], xs[0]));
                   return;
                 }
                 std::array<C, kChannels> run;
                 C* const sums = run.data();
                 std::fill_n(sums, count, C{0});
                 for (const CoveringWindow& y : ys) {
                   for (const CoveringWindow& x : xs) {
                     const auto added = term(y, x);
#pragma omp simd
                     for (std::int64_t i = 0; i < count; ++i) {
                       sums[i] += added(i);
                     }
                   }
                 }
                 store_terms(to, 0, count, [=](std::int64_t i) { return sums[i]; });
               });
}

}  // namespace

void max_pool_forward(Context& context, const PoolingShape& shape, const ConstTensorView& x,
                      const TensorView& y, const TensorView& at) {
  const Observed observed(context, "max_pool_forward", x, y, at);
  require_shape(shape);
  constexpr std::int64_t kPlaces = 256;
  require(shape.height.window * shape.width.window <= kPlaces, "a window of {} x {} elements",
          shape.height.window, shape.width.window);
  require_count(x, x.dtype(), shape.input().count(), "max pooling's x");
  require_count(y, x.dtype(), shape.output().count(), "max pooling's y");
  require_count(at, DType::kUint8, shape.output().count(), "max pooling's places");
  if (observed.handled_by<cuda::max_pool_forward>(shape, x, y, at)) {
    return;
  }
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = x.host<T>().data();
    T* const to = y.host<T>().data();
    std::uint8_t* const places = at.host<std::uint8_t>().data();
    const Windows windows(shape);
    for_each_run(context, shape.images * shape.height.out, shape.width.out, shape.channels,
                 [&](std::int64_t row, std::int64_t column, std::int64_t c, std::int64_t count) {
                   Largest<C> largest;
                   bool begun = false;
                   windows.for_each(row / shape.height.out, row % shape.height.out, column,
                                    [&](std::int64_t place, std::int64_t pixel) {
                                      if (begun) {
                                        take_larger(from + pixel + c, place, count, largest);
                                      } else {
                                        take_first(from + pixel + c, place, count, largest);
                                      }
                                      begun = true;
                                    });
                   const std::int64_t out = (row * shape.width.out + column) * shape.channels + c;
                   const C* const values = largest.value.data();
                   store_terms(to + out, 0, count, [=](std::int64_t i) { return values[i]; });
                   const Place<C>* const found = largest.place.data();
                   std::uint8_t* const into = places + out;
#pragma omp simd
                   for (std::int64_t i = 0; i < count; ++i) {
                     into[i] = static_cast<std::uint8_t>(found[i]);
                   }
                 });
  });
}

void max_pool_backward(Context& context, const PoolingShape& shape, const ConstTensorView& dy,
                       const ConstTensorView& at, const TensorView& dx) {
  const Observed observed(context, "max_pool_backward", dy, at, dx);
  require_shape(shape);
  require_count(dy, dy.dtype(), shape.output().count(), "max pooling's dy");
  require_count(at, DType::kUint8, shape.output().count(), "max pooling's places");
  require_count(dx, dy.dtype(), shape.input().count(), "max pooling's dx");
  if (observed.handled_by<cuda::max_pool_backward>(shape, dy, at, dx)) {
    return;
  }
  with_stored(dy.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = dy.host<T>().data();
    const std::uint8_t* const places = at.host<std::uint8_t>().data();
    sum_over_windows(context, shape, dx.host<T>().data(),
                     [&](std::int64_t out, const CoveringWindow& y, const CoveringWindow& x) {
                       const auto here =
                           static_cast<Place<C>>(y.place * shape.width.window + x.place);
                       const T* const in = from + out;
                       const std::uint8_t* const place = places + out;
                       return [=](std::int64_t i) {
                         const C value = static_cast<C>(in[i]);
                         return static_cast<Place<C>>(place[i]) == here ? value : C{0};
                       };
                     });
  });
}

void average_pool_forward(Context& context, const PoolingShape& shape, const ConstTensorView& x,
                          const TensorView& y) {
  const Observed observed(context, "average_pool_forward", x, y);
  require_shape(shape);
  require_count(x, x.dtype(), shape.input().count(), "average pooling's x");
  require_count(y, x.dtype(), shape.output().count(), "average pooling's y");
  if (observed.handled_by<cuda::average_pool_forward>(shape, x, y)) {
    return;
  }
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = x.host<T>().data();
    T* const to = y.host<T>().data();
    const Windows windows(shape);
    for_each_run(context, shape.images * shape.height.out, shape.width.out, shape.channels,
                 [&](std::int64_t row, std::int64_t column, std::int64_t c, std::int64_t count) {
                   std::array<C, kChannels> run;
                   C* const sums = run.data();
                   std::fill_n(sums, count, C{0});
                   const std::int64_t y_row = row % shape.height.out;
                   windows.for_each(row / shape.height.out, y_row, column,
                                    [&](std::int64_t, std::int64_t pixel) {
                                      const T* const in = from + pixel + c;
#pragma omp simd
                                      for (std::int64_t i = 0; i < count; ++i) {
                                        sums[i] += static_cast<C>(in[i]);
                                      }
                                    });
                   const auto elements = static_cast<C>(windows.count(y_row, column));
                   store_terms(to + (row * shape.width.out + column) * shape.channels + c, 0, count,
                               [=](std::int64_t i) { return sums[i] / elements; });
                 });
  });
}

void average_pool_backward(Context& context, const PoolingShape& shape, const ConstTensorView& dy,
                           const TensorView& dx) {
  const Observed observed(context, "average_pool_backward", dy, dx);
  require_shape(shape);
  require_count(dy, dy.dtype(), shape.output().count(), "average pooling's dy");
  require_count(dx, dy.dtype(), shape.input().count(), "average pooling's dx");
  if (observed.handled_by<cuda::average_pool_backward>(shape, dy, dx)) {
    return;
  }
  with_stored(dy.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = dy.host<T>().data();
    const Windows windows(shape);
    sum_over_windows(context, shape, dx.host<T>().data(),
                     [&](std::int64_t out, const CoveringWindow& y, const CoveringWindow& x) {
                       const auto elements = static_cast<C>(windows.count(y.out, x.out));
                       const T* const in = from + out;
                       return [=](std::int64_t i) { return static_cast<C>(in[i]) / elements; };
                     });
  });
}

}  // namespace strata::ops
