#include "strata/ops/image.hpp"

#include "checks.hpp"
#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"

// These kernels only move elements, so an unsigned integer of equal size stands for every dtype.
namespace strata::ops::cuda {
namespace {

template <typename Function>
void with_raw_type(DType dtype, const Function& function) {
  switch (size_bytes(dtype)) {
    case 1:
      return function(std::uint8_t{});
    case 2:
      return function(std::uint16_t{});
    case 4:
      return function(std::uint32_t{});
    default:
      return function(std::uint64_t{});
  }
}

/// Rows and columns of the tile that a block of kThreads threads transposes.
constexpr int kTile = 32;
constexpr int kTileThreads = kThreads / kTile;

/// Coalesced reads and writes; the tile is transposed in shared memory, padded by one element a row
/// against bank conflicts.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    swap_kernel(std::int64_t rows, std::int64_t columns, std::int64_t down, std::int64_t across,
                const T* x, T* y) {
  __shared__ T tile[kTile][kTile + 1];
  const std::int64_t image = blockIdx.x / (down * across) * rows * columns;
  const std::int64_t first_row = blockIdx.x / across % down * kTile;
  const std::int64_t first_column = blockIdx.x % across * kTile;
  const int along = static_cast<int>(threadIdx.x) % kTile;
  const int first = static_cast<int>(threadIdx.x) / kTile;
  for (int i = first; i < kTile; i += kTileThreads) {
    const std::int64_t row = first_row + i;
    const std::int64_t column = first_column + along;
    if (row < rows && column < columns) {
      tile[i][along] = x[image + row * columns + column];
    }
  }
  __syncthreads();
  for (int i = first; i < kTile; i += kTileThreads) {
    const std::int64_t column = first_column + i;
    const std::int64_t row = first_row + along;
    if (row < rows && column < columns) {
      y[image + column * rows + row] = tile[along][i];
    }
  }
}

/// Extents of images without their border and with it.
struct Frame {
  explicit Frame(const BorderShape& shape)
      : height(shape.height),
        row(shape.width * shape.channels),
        border(shape.border),
        side(shape.border * shape.channels),
        outer_height(shape.height + 2 * shape.border),
        outer_row((shape.width + 2 * shape.border) * shape.channels) {}

  std::int64_t height;
  std::int64_t row;  ///< elements
  std::int64_t border;
  std::int64_t side;  ///< elements
  std::int64_t outer_height;
  std::int64_t outer_row;
};

/// One thread for each element of y, the padded images.
template <typename T>
__global__ void add_border_kernel(std::int64_t count, Frame frame, const T* x, T* y) {
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  const std::int64_t column = i % frame.outer_row - frame.side;
  const std::int64_t row = i / frame.outer_row % frame.outer_height - frame.border;
  const std::int64_t image = i / frame.outer_row / frame.outer_height;
  const bool inside = row >= 0 && row < frame.height && column >= 0 && column < frame.row;
  y[i] = inside ? x[(image * frame.height + row) * frame.row + column] : T{0};
}

/// One thread for each element of x, the images without border.
template <typename T>
__global__ void remove_border_kernel(std::int64_t count, Frame frame, const T* y, T* x) {
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  const std::int64_t column = i % frame.row + frame.side;
  const std::int64_t row = i / frame.row % frame.height + frame.border;
  const std::int64_t image = i / frame.row / frame.height;
  x[i] = y[(image * frame.outer_height + row) * frame.outer_row + column];
}

/// One thread for each element of `to`, whose rows may be longer or shorter.
template <typename T>
__global__ void fit_rows_kernel(std::int64_t count, std::int64_t from_columns,
                                std::int64_t to_columns, const T* from, T* to) {
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  const std::int64_t column = i % to_columns;
  to[i] = column < from_columns ? from[i / to_columns * from_columns + column] : T{0};
}

template <typename T, typename View>
auto raw(const View& view) {
  return reinterpret_cast<std::conditional_t<std::is_same_v<View, TensorView>, T, const T>*>(
      view.raw());
}

void fit_rows(Context& context, const char* name, const ConstTensorView& from,
              const TensorView& to) {
  require_memory_space(context, from);
  require_memory_space(context, to);
  with_raw_type(from.dtype(), [&]<typename T>(T) {
    launch(context, name, grid_of(to.count()), fit_rows_kernel<T>, to.count(),
           rows_of(from.shape()).columns, rows_of(to.shape()).columns, raw<T>(from), raw<T>(to));
  });
}

}  // namespace

void swap_inner(Context& context, std::int64_t images, std::int64_t rows, std::int64_t columns,
                const ConstTensorView& x, const TensorView& y) {
  require_memory_space(context, x);
  require_memory_space(context, y);
  const std::int64_t down = (rows + kTile - 1) / kTile;
  const std::int64_t across = (columns + kTile - 1) / kTile;
  with_raw_type(x.dtype(), [&]<typename T>(T) {
    launch(context, "swap_inner", {images * down * across, kThreads, 0}, swap_kernel<T>, rows,
           columns, down, across, raw<T>(x), raw<T>(y));
  });
}

void add_border(Context& context, const BorderShape& shape, const ConstTensorView& x,
                const TensorView& y) {
  require_memory_space(context, x);
  require_memory_space(context, y);
  with_raw_type(x.dtype(), [&]<typename T>(T) {
    launch(context, "add_border", grid_of(y.count()), add_border_kernel<T>, y.count(), Frame(shape),
           raw<T>(x), raw<T>(y));
  });
}

void remove_border(Context& context, const BorderShape& shape, const ConstTensorView& y,
                   const TensorView& x) {
  require_memory_space(context, x);
  require_memory_space(context, y);
  with_raw_type(x.dtype(), [&]<typename T>(T) {
    launch(context, "remove_border", grid_of(x.count()), remove_border_kernel<T>, x.count(),
           Frame(shape), raw<T>(y), raw<T>(x));
  });
}

void widen_rows(Context& context, const ConstTensorView& x, const TensorView& y) {
  fit_rows(context, "widen_rows", x, y);
}

void narrow_rows(Context& context, const ConstTensorView& y, const TensorView& x) {
  fit_rows(context, "narrow_rows", y, x);
}

}  // namespace strata::ops::cuda
