#include "strata/ops/matmul.hpp"

#include <algorithm>
#include <vector>

#include <omp.h>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "double_product.hpp"
#include "primitives.hpp"
#include "rounded.hpp"

namespace strata::ops {
namespace {

/// Extents of a product, op(a)[m, k] op(b)[k, n].
struct Extents {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
};

/// `count` dealt to equal pieces of at most about `largest`, each a multiple of a kernel's width.
std::int64_t piece(std::int64_t count, std::int64_t largest) {
  constexpr std::int64_t kWidth = 64;
  const std::int64_t pieces = (count + largest - 1) / largest;
  const std::int64_t even = (count + pieces - 1) / pieces;
  return std::min(count, (even + kWidth - 1) / kWidth * kWidth);
}

/// The tiles of c that are computed one at a time, each by one thread. They follow from the extents
/// alone (design law 1). Their size is a measured balance: smaller ones repeat more packing of b.
class Tiles {
 public:
  explicit Tiles(const Extents& extents) : extents_(extents) {
    constexpr std::int64_t kRows = 512;
    constexpr std::int64_t kElements = 512 * 256;
    rows_ = piece(extents.m, kRows);
    columns_ = piece(extents.n, std::clamp<std::int64_t>(kElements / rows_, 512, 2048));
    across_ = (extents.n + columns_ - 1) / columns_;
    down_ = (extents.m + rows_ - 1) / rows_;
  }

  [[nodiscard]] std::int64_t count() const { return across_ * down_; }
  [[nodiscard]] std::int64_t first_row(std::int64_t tile) const { return tile / across_ * rows_; }
  [[nodiscard]] std::int64_t first_column(std::int64_t tile) const {
    return tile % across_ * columns_;
  }
  [[nodiscard]] std::int64_t rows(std::int64_t tile) const {
    return std::min(rows_, extents_.m - first_row(tile));
  }
  [[nodiscard]] std::int64_t columns(std::int64_t tile) const {
    return std::min(columns_, extents_.n - first_column(tile));
  }

 private:
  Extents extents_;
  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t across_;
  std::int64_t down_;
};

Extents extents_of(const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& c,
                   const MatmulOptions& options) {
  require(a.shape().rank() == 2 && b.shape().rank() == 2, "a product of tensors of {} and {}",
          a.shape().text(), b.shape().text());
  const bool turned_a = options.transpose_a == Transpose::kYes;
  const bool turned_b = options.transpose_b == Transpose::kYes;
  const Extents extents{a.shape()[turned_a ? 1 : 0], b.shape()[turned_b ? 0 : 1],
                        a.shape()[turned_a ? 0 : 1]};
  require(b.shape()[turned_b ? 1 : 0] == extents.k && extents.k >= 1,
          "a product of tensors of {} and {} that sums over {}", a.shape().text(), b.shape().text(),
          extents.k);
  require(b.dtype() == a.dtype(), "a product of {} and {}", name_of(a.dtype()), name_of(b.dtype()));
  const bool widened = a.dtype() == DType::kBfloat16 && c.dtype() == DType::kFloat32;
  require_like(c, widened ? DType::kFloat32 : a.dtype(), Shape{extents.m, extents.n},
               "a product's c");
  if (!options.bias.empty()) {
    require_count(options.bias, a.dtype(), extents.n, "a product's bias");
  }
  require(options.activation == Activation::kNone || options.activation == Activation::kRelu,
          "a product with {}", name_of(options.activation));
  require(options.activation == Activation::kNone || options.accumulate == Accumulate::kOverwrite,
          "a product that is added and then goes through {}", name_of(options.activation));
  return extents;
}

// Done here and not by oneDNN, whose relu turns a NaN into 0.
template <typename T>
void relu_tile(T* c, std::int64_t rows, std::int64_t columns, std::int64_t row_c) {
  // A tile as wide as c is one run of elements.
  const bool whole = columns == row_c;
  const std::int64_t runs = whole ? 1 : rows;
  const std::int64_t length = whole ? rows * columns : columns;
  for (std::int64_t run = 0; run < runs; ++run) {
    T* const elements = c + run * row_c;
#pragma omp simd
    for (std::int64_t j = 0; j < length; ++j) {
      const auto value = static_cast<Compute<T>>(elements[j]);
      elements[j] = rounded<T>(value < Compute<T>{0} ? Compute<T>{0} : value);
    }
  }
}

/// A product that oneDNN does, tile by tile.
class TiledProduct {
 public:
  TiledProduct(const Extents& extents, const ConstTensorView& a, const ConstTensorView& b,
               const TensorView& c, const MatmulOptions& options)
      : tiles_(extents),
        operands_{a.raw(), b.raw(), options.bias.raw(), c.raw()},
        activation_(options.activation) {
    key_.operands = a.dtype();
    key_.result = c.dtype();
    key_.k = extents.k;
    key_.row_a = options.transpose_a == Transpose::kYes ? extents.m : extents.k;
    key_.row_b = options.transpose_b == Transpose::kYes ? extents.k : extents.n;
    key_.row_c = extents.n;
    key_.transpose_a = options.transpose_a;
    key_.transpose_b = options.transpose_b;
    key_.accumulate = options.accumulate;
    key_.has_bias = !options.bias.empty();
  }

  void run(Context& context) const {
    Primitives& primitives = context.primitives();
    std::vector<Product*> products;
    products.reserve(static_cast<std::size_t>(tiles_.count()));
    for (std::int64_t tile = 0; tile < tiles_.count(); ++tile) {
      ProductKey key = key_;
      key.m = tiles_.rows(tile);
      key.n = tiles_.columns(tile);
      products.push_back(&primitives.product(key));
    }
    parallel_for(context, tiles_.count(), 1, [&](std::int64_t tile, std::int64_t) {
      const ProductOperands part = operands_of(tile);
      primitives.run(*products[static_cast<std::size_t>(tile)], omp_get_thread_num(), part);
      if (activation_ == Activation::kRelu) {
        with_stored(key_.result, [&]<typename T>(T) {
          relu_tile(reinterpret_cast<T*>(part.c), tiles_.rows(tile), tiles_.columns(tile),
                    key_.row_c);
        });
      }
    });
  }

 private:
  [[nodiscard]] ProductOperands operands_of(std::int64_t tile) const {
    const std::int64_t row = tiles_.first_row(tile);
    const std::int64_t column = tiles_.first_column(tile);
    const std::int64_t bytes = size_bytes(key_.operands);
    ProductOperands part;
    part.a = operands_.a + bytes * (key_.transpose_a == Transpose::kYes ? row : row * key_.row_a);
    part.b =
        operands_.b + bytes * (key_.transpose_b == Transpose::kYes ? column * key_.row_b : column);
    part.bias = operands_.bias == nullptr ? nullptr : operands_.bias + bytes * column;
    part.c = operands_.c + size_bytes(key_.result) * (row * key_.row_c + column);
    return part;
  }

  Tiles tiles_;
  ProductOperands operands_;
  Activation activation_;
  ProductKey key_;
};

void double_matmul(Context& context, const Extents& extents, const ConstTensorView& a,
                   const ConstTensorView& b, const TensorView& c, const MatmulOptions& options) {
  const bool turned_a = options.transpose_a == Transpose::kYes;
  const bool turned_b = options.transpose_b == Transpose::kYes;
  const StridedMatrix left{a.host<double>().data(), turned_a ? 1 : extents.k,
                           turned_a ? extents.m : 1};
  const StridedMatrix right{b.host<double>().data(), turned_b ? 1 : extents.n,
                            turned_b ? extents.k : 1};
  const double* bias = options.bias.empty() ? nullptr : options.bias.host<double>().data();
  double_product(context, {extents.m, extents.n, extents.k, left, right, bias,
                           c.host<double>().data(), options.accumulate, options.activation});
}

}  // namespace

void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c, const MatmulOptions& options) {
  const Extents extents = extents_of(a, b, c, options);
  if (c.count() == 0) {
    return;
  }
  if (a.dtype() == DType::kFloat64) {
    double_matmul(context, extents, a, b, c, options);
    return;
  }
  for (const ConstTensorView& tensor : {a, b, options.bias, ConstTensorView(c)}) {
    require_host(tensor);
  }
  TiledProduct(extents, a, b, c, options).run(context);
}

}  // namespace strata::ops
