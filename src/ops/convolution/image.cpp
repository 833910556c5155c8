#include "strata/ops/image.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "strata/core/dtype.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"

namespace strata::ops {
namespace {

/// Rows and columns of a transposed tile; both sides stay in the cache.
constexpr std::int64_t kBlock = 32;

constexpr std::int64_t kRowGrain = 4096;

template <std::size_t kBytes>
void swap_image(const std::byte* from, std::int64_t rows, std::int64_t columns, std::byte* to) {
  using Element = std::array<std::byte, kBytes>;
  for (std::int64_t first_row = 0; first_row < rows; first_row += kBlock) {
    const std::int64_t end_row = std::min(rows, first_row + kBlock);
    for (std::int64_t first = 0; first < columns; first += kBlock) {
      const std::int64_t end = std::min(columns, first + kBlock);
      for (std::int64_t c = first; c < end; ++c) {
        for (std::int64_t r = first_row; r < end_row; ++r) {
          std::memcpy(to + (c * rows + r) * static_cast<std::int64_t>(kBytes),
                      from + (r * columns + c) * static_cast<std::int64_t>(kBytes),
                      sizeof(Element));
        }
      }
    }
  }
}

/// Bytes of a row of pixels, without and with the border, and of the border beside it.
struct BorderBytes {
  explicit BorderBytes(const BorderShape& shape, DType dtype)
      : pixel(shape.channels * size_bytes(dtype)),
        inner(shape.width * pixel),
        side(shape.border * pixel),
        outer(inner + 2 * side) {}

  std::int64_t pixel;
  std::int64_t inner;
  std::int64_t side;
  std::int64_t outer;
};

void require_border(const BorderShape& shape, const ConstTensorView& inner,
                    const ConstTensorView& outer) {
  const std::int64_t pixels = shape.images * shape.height * shape.width;
  const std::int64_t padded =
      shape.images * (shape.height + 2 * shape.border) * (shape.width + 2 * shape.border);
  require_count(inner, inner.dtype(), pixels * shape.channels, "images without a border");
  require_count(outer, inner.dtype(), padded * shape.channels, "images with a border");
}

/// Copies rows that may be longer or shorter than those of `to`; further elements become 0.
void fit_rows(Context& context, const ConstTensorView& from, const TensorView& to) {
  const auto [rows, columns] = rows_of(from.shape());
  const std::int64_t from_bytes = columns * size_bytes(from.dtype());
  const std::int64_t to_bytes = rows_of(to.shape()).columns * size_bytes(to.dtype());
  const std::int64_t copied_bytes = std::min(from_bytes, to_bytes);
  parallel_for(context, rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::byte* const rest =
          std::copy_n(from.raw() + row * from_bytes, copied_bytes, to.raw() + row * to_bytes);
      std::fill_n(rest, to_bytes - copied_bytes, std::byte{0});
    }
  });
}

}  // namespace

void swap_inner(Context& context, std::int64_t images, std::int64_t rows, std::int64_t columns,
                const ConstTensorView& x, const TensorView& y) {
  const Observed observed(context, "swap_inner", x, y);
  require_count(x, x.dtype(), images * rows * columns, "swap_inner's x");
  require_count(y, x.dtype(), x.count(), "swap_inner's y");
  if (observed.handled_by<cuda::swap_inner>(images, rows, columns, x, y)) {
    return;
  }
  require_memory_space(context, x);
  const std::int64_t bytes = rows * columns * size_bytes(x.dtype());
  parallel_for(context, images, 1, [&](std::int64_t image, std::int64_t) {
    const std::byte* from = x.raw() + image * bytes;
    std::byte* to = y.raw() + image * bytes;
    switch (size_bytes(x.dtype())) {
      case 1:
        return swap_image<1>(from, rows, columns, to);
      case 2:
        return swap_image<2>(from, rows, columns, to);
      case 4:
        return swap_image<4>(from, rows, columns, to);
      default:
        return swap_image<8>(from, rows, columns, to);
    }
  });
}

void add_border(Context& context, const BorderShape& shape, const ConstTensorView& x,
                const TensorView& y) {
  const Observed observed(context, "add_border", x, y);
  require_border(shape, x, y);
  if (observed.handled_by<cuda::add_border>(shape, x, y)) {
    return;
  }
  require_memory_space(context, x);
  const BorderBytes bytes(shape, x.dtype());
  parallel_for(context, shape.images, 1, [&](std::int64_t image, std::int64_t) {
    const std::byte* from = x.raw() + image * shape.height * bytes.inner;
    std::byte* to = y.raw() + image * (shape.height + 2 * shape.border) * bytes.outer;
    to = std::fill_n(to, shape.border * bytes.outer, std::byte{0});
    for (std::int64_t row = 0; row < shape.height; ++row, from += bytes.inner) {
      to = std::fill_n(to, bytes.side, std::byte{0});
      to = std::copy_n(from, bytes.inner, to);
      to = std::fill_n(to, bytes.side, std::byte{0});
    }
    std::fill_n(to, shape.border * bytes.outer, std::byte{0});
  });
}

void remove_border(Context& context, const BorderShape& shape, const ConstTensorView& y,
                   const TensorView& x) {
  const Observed observed(context, "remove_border", y, x);
  require_border(shape, x, y);
  if (observed.handled_by<cuda::remove_border>(shape, y, x)) {
    return;
  }
  require_memory_space(context, x);
  const BorderBytes bytes(shape, x.dtype());
  parallel_for(context, shape.images, 1, [&](std::int64_t image, std::int64_t) {
    const std::byte* from = y.raw() + image * (shape.height + 2 * shape.border) * bytes.outer +
                            shape.border * bytes.outer;
    std::byte* to = x.raw() + image * shape.height * bytes.inner;
    for (std::int64_t row = 0; row < shape.height; ++row, from += bytes.outer) {
      to = std::copy_n(from + bytes.side, bytes.inner, to);
    }
  });
}

void widen_rows(Context& context, const ConstTensorView& x, const TensorView& y) {
  const Observed observed(context, "widen_rows", x, y);
  const auto [rows, narrow] = rows_of(x.shape());
  const std::int64_t wide = rows_of(y.shape()).columns;
  require(wide >= narrow, "rows of {} cannot be widened to {}", narrow, wide);
  require_like(y, x.dtype(), Shape{rows, wide}, "widen_rows' y");
  if (observed.handled_by<cuda::widen_rows>(x, y)) {
    return;
  }
  fit_rows(context, x, y);
}

void narrow_rows(Context& context, const ConstTensorView& y, const TensorView& x) {
  const Observed observed(context, "narrow_rows", y, x);
  const auto [rows, wide] = rows_of(y.shape());
  const std::int64_t narrow = rows_of(x.shape()).columns;
  require(wide >= narrow, "rows of {} cannot be narrowed from {}", narrow, wide);
  require_like(x, y.dtype(), Shape{rows, narrow}, "narrow_rows' x");
  if (observed.handled_by<cuda::narrow_rows>(y, x)) {
    return;
  }
  fit_rows(context, y, x);
}

}  // namespace strata::ops
