#include "strata/ops/matmul.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/image.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "matmul/double_product.hpp"
#include "matmul/row_product.hpp"
#include "observed.hpp"
#include "onednn/primitive_cache.hpp"
#include "simd/relu_run.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

/// Extents of a product, op(a)[m, k] op(b)[k, n].
struct Extents {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t row_a = 0;  ///< elements from one stored row of a to the next
};

/// `count` dealt to equal pieces of at most about `largest`, each a multiple of a kernel's width.
std::int64_t piece(std::int64_t count, std::int64_t largest) {
  constexpr std::int64_t kWidth = 64;
  const std::int64_t pieces = (count + largest - 1) / largest;
  const std::int64_t even = (count + pieces - 1) / pieces;
  return std::min(count, (even + kWidth - 1) / kWidth * kWidth);
}

/// The tiles of c, each computed by one thread. They depend only on the extents and options (design
/// law 1), because an element's bits depend on the shape of its tile: oneDNN may block a sum over k
/// by the tile's rows and columns. The sizes are a measured compromise.
class Tiles {
 public:
  Tiles(const Extents& extents, Transpose transpose_b) : extents_(extents) {
    constexpr std::int64_t kWhole = 1024;
    constexpr std::int64_t kColumns = 512;
    constexpr std::int64_t kCached = 1 << 22;
    // Columns of a b that is not transposed are never cut, for they lie apart. A large b comes from
    // memory and is worth reading once for many rows.
    const bool cut = transpose_b == Transpose::kYes && extents.n > kWhole;
    columns_ = cut ? piece(extents.n, kColumns) : extents.n;
    const bool large_b = extents.k * extents.n > kCached;
    rows_ = piece(extents.m, cut || large_b || extents.m >= 512 ? 256 : 128);
    across_ = (extents.n + columns_ - 1) / columns_;
    down_ = (extents.m + rows_ - 1) / rows_;
  }

  [[nodiscard]] std::int64_t count() const { return across_ * down_; }
  [[nodiscard]] std::int64_t first_row(std::int64_t tile) const { return tile % down_ * rows_; }
  [[nodiscard]] std::int64_t first_column(std::int64_t tile) const {
    return tile / down_ * columns_;
  }
  [[nodiscard]] std::int64_t rows(std::int64_t tile) const {
    return std::min(rows_, extents_.m - first_row(tile));
  }
  [[nodiscard]] std::int64_t columns(std::int64_t tile) const {
    return std::min(columns_, extents_.n - first_column(tile));
  }
  [[nodiscard]] std::int64_t most_rows() const { return rows_; }
  [[nodiscard]] std::int64_t most_columns() const { return columns_; }
  [[nodiscard]] bool cuts_rows() const { return down_ > 1; }
  [[nodiscard]] bool cuts_columns() const { return across_ > 1; }

 private:
  Extents extents_;
  std::int64_t rows_;
  std::int64_t columns_;
  std::int64_t across_;
  std::int64_t down_;
};

/// The name of a product, as OperationWork has it.
std::string_view product_name(const MatmulOptions& options) {
  const bool ta = options.transpose_a == Transpose::kYes;
  const bool tb = options.transpose_b == Transpose::kYes;
  if (options.activation == Activation::kGelu) {
    return tb ? "matmul_nt_gelu" : "matmul_nn_gelu";
  }
  if (!options.gelu_gradient_of.empty()) {
    return tb ? "matmul_nt_gelu_gradient" : "matmul_nn_gelu_gradient";
  }
  return ta ? (tb ? "matmul_tt" : "matmul_tn") : (tb ? "matmul_nt" : "matmul_nn");
}

OperationWork product_work(const Extents& extents, const ConstTensorView& a,
                           const ConstTensorView& b, const ConstTensorView& c,
                           const MatmulOptions& options) {
  double bytes = 0.0;
  for (const ConstTensorView& tensor :
       {a, b, c, options.bias, options.addend, ConstTensorView(options.pre_activation),
        options.gelu_gradient_of}) {
    bytes += Observed::bytes_of(tensor);
  }
  if (options.accumulate == Accumulate::kAdd) {
    bytes += Observed::bytes_of(c);
  }
  // Rows of zeros stand behind those of b where rows of a or c are padded.
  const std::int64_t rows = options.transpose_b == Transpose::kYes   ? c.shape()[1]
                            : options.transpose_a == Transpose::kYes ? extents.k
                                                                     : a.shape()[1];
  return {.name = product_name(options),
          .dtype = a.dtype(),
          .extents = {extents.m, extents.n, extents.k},
          .flops = 2.0 * static_cast<double>(extents.m) * static_cast<double>(extents.n) *
                   static_cast<double>(extents.k),
          .bytes = bytes,
          .scratch = rows > b.shape()[0] ? rows * b.shape()[1] * size_bytes(b.dtype()) : 0};
}

/// The longer rows of MatmulOptions::padded_rows.
void require_padded(const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& c,
                    const MatmulOptions& options) {
  const bool transposed_a = options.transpose_a == Transpose::kYes;
  const bool transposed_b = options.transpose_b == Transpose::kYes;
  const std::int64_t used = transposed_a ? c.shape()[0] : b.shape()[transposed_b ? 1 : 0];
  const std::int64_t made = b.shape()[transposed_b ? 0 : 1];
  const bool exact = options.bias.empty() && options.addend.empty() &&
                     options.gelu_gradient_of.empty() && options.activation == Activation::kNone;
  require(exact && c.shape().rank() == 2 &&
              (transposed_b ? a.shape()[1] == used : a.shape()[1] >= used) &&
              (transposed_b && options.accumulate == Accumulate::kOverwrite ? c.shape()[1] >= made
                                                                            : c.shape()[1] == made),
          "a product of tensors of {} and {} into one of {}, with padded rows", a.shape().text(),
          b.shape().text(), c.shape().text());
}

Extents extents_of(const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& c,
                   const MatmulOptions& options) {
  require(a.shape().rank() == 2 && b.shape().rank() == 2, "a product of tensors of {} and {}",
          a.shape().text(), b.shape().text());
  const bool transposed_a = options.transpose_a == Transpose::kYes;
  const bool transposed_b = options.transpose_b == Transpose::kYes;
  Extents extents{a.shape()[transposed_a ? 1 : 0], b.shape()[transposed_b ? 0 : 1],
                  a.shape()[transposed_a ? 0 : 1], a.shape()[1]};
  if (options.padded_rows) {
    require_padded(a, b, c, options);
    extents.m = c.shape()[0];
    extents.k = transposed_a ? a.shape()[0] : b.shape()[transposed_b ? 1 : 0];
  }
  require(b.shape()[transposed_b ? 1 : 0] == extents.k && extents.k >= 1,
          "a product of tensors of {} and {} that sums over {}", a.shape().text(), b.shape().text(),
          extents.k);
  require(b.dtype() == a.dtype(), "a product of {} and {}", name_of(a.dtype()), name_of(b.dtype()));
  const bool widened = a.dtype() == DType::kBfloat16 && c.dtype() == DType::kFloat32;
  require_like(c, widened ? DType::kFloat32 : a.dtype(),
               Shape{extents.m, options.padded_rows ? c.shape()[1] : extents.n}, "a product's c");
  if (!options.bias.empty()) {
    require_count(options.bias, a.dtype(), extents.n, "a product's bias");
  }
  return extents;
}

/// An optional tensor of a product with c's dtype and shape.
void require_optional(const ConstTensorView& tensor, const ConstTensorView& c, const char* what) {
  if (!tensor.empty()) {
    require_like(tensor, c.dtype(), c.shape(), what);
  }
}

void require_options(const ConstTensorView& c, const MatmulOptions& options) {
  const Activation activation = options.activation;
  const bool overwrites = options.accumulate == Accumulate::kOverwrite;
  require(activation == Activation::kNone || activation == Activation::kRelu ||
              activation == Activation::kGelu,
          "a product with {}", name_of(activation));
  require(activation == Activation::kNone || (overwrites && options.addend.empty()),
          "a product with an addend or kAdd and the activation {}", name_of(activation));
  require(overwrites || options.addend.empty(), "a product with kAdd and an addend");
  require_optional(options.addend, c, "a product's addend");
  require((activation == Activation::kGelu) == !options.pre_activation.empty(),
          "a product with {} {} a pre_activation", name_of(activation),
          options.pre_activation.empty() ? "without" : "and");
  require_optional(options.pre_activation, c, "a product's pre_activation");
  const ConstTensorView& at = options.gelu_gradient_of;
  require(at.empty() || (overwrites && activation == Activation::kNone && options.bias.empty() &&
                         options.addend.empty()),
          "a product with gelu_gradient_of and other options");
  require_optional(at, c, "a product's gelu_gradient_of");
  require(options.row_bits == RowBits::kOfShape ||
              (options.transpose_a == Transpose::kNo && options.transpose_b == Transpose::kYes &&
               activation != Activation::kRelu),
          "a product with bits of rows, {}{} and {}",
          options.transpose_a == Transpose::kYes ? "a transposed, " : "",
          options.transpose_b == Transpose::kYes ? "b transposed" : "b not transposed",
          name_of(activation));
  require(options.pre_activation.raw() != c.raw() && at.raw() != c.raw(),
          "a product whose c is its pre_activation or gelu_gradient_of");
}

/// A block of a stored matrix with its row stride in bytes.
template <typename Byte>
struct Block {
  Byte* data = nullptr;
  std::int64_t row_bytes = 0;
};

template <typename Byte>
void copy_block(const Block<Byte>& from, const Block<std::byte>& to, std::int64_t rows,
                std::int64_t bytes) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(to.data + row * to.row_bytes, from.data + row * from.row_bytes,
                static_cast<std::size_t>(bytes));
  }
}

/// Addresses of a product's operands, of the key's dtypes; bias may be null.
struct ProductOperands {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* bias = nullptr;
  std::byte* c = nullptr;
};

/// A product by oneDNN, tile by tile.
class TiledProduct {
 public:
  TiledProduct(const Extents& extents, DType operands, DType result, const ProductOperands& at,
               const MatmulOptions& options)
      : extents_(extents),
        tiles_(extents, options.transpose_b),
        operands_(at),
        activation_(options.activation) {
    key_.operands = operands;
    key_.result = result;
    key_.k = extents.k;
    key_.transpose_a = options.transpose_a;
    key_.transpose_b = options.transpose_b;
    key_.accumulate = options.accumulate;
    key_.has_bias = !options.bias.empty();
    stage_a_ =
        options.transpose_a == Transpose::kYes ? tiles_.cuts_rows() : extents.row_a != extents.k;
    stage_c_ = tiles_.cuts_columns();
  }

  void run(Context& context) const {
    PrimitiveCache& primitives = context.primitives();
    primitives.reserve_staging(staged_a_bytes() + staged_c_bytes());
    std::vector<Primitive*> products;
    products.reserve(static_cast<std::size_t>(tiles_.count()));
    for (std::int64_t tile = 0; tile < tiles_.count(); ++tile) {
      ProductKey key = key_;
      key.m = tiles_.rows(tile);
      key.n = tiles_.columns(tile);
      products.push_back(&primitives.primitive(key));
    }
    parallel_for(context, tiles_.count(), 1, [&](std::int64_t tile, std::int64_t, int thread) {
      run_tile(primitives, *products[static_cast<std::size_t>(tile)], tile, thread);
    });
    primitives.check();
  }

 private:
  [[nodiscard]] std::int64_t staged_a_bytes() const {
    constexpr std::int64_t kLine = 64;
    const std::int64_t bytes = tiles_.most_rows() * key_.k * size_bytes(key_.operands);
    return stage_a_ ? (bytes + kLine - 1) / kLine * kLine : 0;
  }
  [[nodiscard]] std::int64_t staged_c_bytes() const {
    return stage_c_ ? tiles_.most_rows() * tiles_.most_columns() * size_bytes(key_.result) : 0;
  }

  void run_tile(PrimitiveCache& primitives, Primitive& product, std::int64_t tile,
                int thread) const {
    std::byte* const staging = primitives.staging(thread);
    const std::int64_t rows = tiles_.rows(tile);
    const std::int64_t row_bytes = tiles_.columns(tile) * size_bytes(key_.result);
    const Block<std::byte> c = c_of(tile);
    const Block<std::byte> staged_c{staging + staged_a_bytes(), row_bytes};
    if (stage_c_ && key_.accumulate == Accumulate::kAdd) {
      copy_block(c, staged_c, rows, row_bytes);
    }
    std::byte* const result = stage_c_ ? staged_c.data : c.data;
    // oneDNN takes non-const pointers for inputs too.
    const std::array<std::byte*, 4> part{const_cast<std::byte*>(a_of(tile, staging)),
                                         const_cast<std::byte*>(b_of(tile)), result,
                                         const_cast<std::byte*>(bias_of(tile))};
    primitives.run(product, thread, part);
    if (activation_ == Activation::kRelu) {
      with_stored(key_.result, [&]<typename T>(T) {
        relu_run(reinterpret_cast<T*>(result), rows * tiles_.columns(tile));
      });
    }
    if (stage_c_) {
      copy_block(staged_c, c, rows, row_bytes);
    }
  }

  /// Rows of op(a), packed into `staging` where they have gaps.
  [[nodiscard]] const std::byte* a_of(std::int64_t tile, std::byte* staging) const {
    const std::int64_t bytes = size_bytes(key_.operands);
    const bool turned = key_.transpose_a == Transpose::kYes;
    const std::int64_t row = tiles_.first_row(tile);
    const std::byte* const first = operands_.a + bytes * row * (turned ? 1 : extents_.row_a);
    if (!stage_a_) {
      return first;
    }
    const std::int64_t length = bytes * (turned ? tiles_.rows(tile) : key_.k);
    copy_block<const std::byte>({first, bytes * extents_.row_a}, {staging, length},
                                turned ? key_.k : tiles_.rows(tile), length);
    return staging;
  }
  [[nodiscard]] const std::byte* b_of(std::int64_t tile) const {
    return operands_.b + size_bytes(key_.operands) * tiles_.first_column(tile) * key_.k;
  }
  [[nodiscard]] const std::byte* bias_of(std::int64_t tile) const {
    return operands_.bias == nullptr
               ? nullptr
               : operands_.bias + size_bytes(key_.operands) * tiles_.first_column(tile);
  }
  [[nodiscard]] Block<std::byte> c_of(std::int64_t tile) const {
    const std::int64_t bytes = size_bytes(key_.result);
    const std::int64_t first = tiles_.first_row(tile) * extents_.n + tiles_.first_column(tile);
    return {operands_.c + bytes * first, bytes * extents_.n};
  }

  Extents extents_;
  Tiles tiles_;
  ProductOperands operands_;
  Activation activation_;
  ProductKey key_;
  bool stage_a_;
  bool stage_c_;
};

/// A sum over more than this is cut where neither operand is transposed: its pieces of a and b fit
/// the caches, of which oneDNN would read a anew for each few columns of c. Cuts follow from k
/// alone.
constexpr std::int64_t kDeep = 8192;
constexpr std::int64_t kDeepPiece = 1024;

/// c = (or +=) sum, rounded once.
void finish_sum(Context& context, const float* sum, std::int64_t count, Accumulate accumulate,
                BFloat16* c) {
  parallel_for(context, count, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    // NOLINTNEXTLINE(bugprone-branch-clone): the branches differ by the addition.
    if (accumulate == Accumulate::kAdd) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        c[i] = to_storage<BFloat16>(static_cast<float>(c[i]) + sum[i]);
      }
    } else {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        c[i] = to_storage<BFloat16>(sum[i]);
      }
    }
  });
}

/// A product that sums over many elements, in pieces that are added in float32.
void deep_product(Context& context, const Extents& extents, DType operands, DType result,
                  const ProductOperands& at, MatmulOptions options) {
  const bool narrow = result == DType::kBfloat16;
  const Accumulate accumulate = options.accumulate;
  const Activation activation = std::exchange(options.activation, Activation::kNone);
  const Shape shape{extents.m, extents.n};
  std::byte* const sum =
      narrow ? context.primitives().shared(shape.count() * size_bytes(DType::kFloat32)) : at.c;
  if (narrow) {
    options.accumulate = Accumulate::kOverwrite;
  }
  const std::int64_t length = piece(extents.k, kDeepPiece);
  for (std::int64_t first = 0; first < extents.k; first += length) {
    Extents part = extents;
    part.k = std::min(length, extents.k - first);
    const ProductOperands part_at{at.a + size_bytes(operands) * first,
                                  at.b + size_bytes(operands) * first * extents.n, at.bias, sum};
    TiledProduct(part, operands, DType::kFloat32, part_at, options).run(context);
    options.accumulate = Accumulate::kAdd;
    options.bias = {};
  }
  if (narrow) {
    finish_sum(context, reinterpret_cast<const float*>(sum), shape.count(), accumulate,
               reinterpret_cast<BFloat16*>(at.c));
  }
  if (activation == Activation::kRelu) {
    with_stored(result,
                [&]<typename T>(T) { relu_run(reinterpret_cast<T*>(at.c), shape.count()); });
  }
}

void double_matmul(Context& context, const Extents& extents, const ConstTensorView& a,
                   const ConstTensorView& b, const TensorView& c, const MatmulOptions& options) {
  const bool transposed_a = options.transpose_a == Transpose::kYes;
  const bool transposed_b = options.transpose_b == Transpose::kYes;
  const StridedMatrix left{a.host<double>().data(), transposed_a ? 1 : extents.k,
                           transposed_a ? extents.m : 1};
  const StridedMatrix right{b.host<double>().data(), transposed_b ? 1 : extents.n,
                            transposed_b ? extents.k : 1};
  const double* bias = options.bias.empty() ? nullptr : options.bias.host<double>().data();
  double_product(context, {extents.m, extents.n, extents.k, left, right, bias,
                           c.host<double>().data(), options.accumulate, options.activation});
}

/// c = activation(op(a) op(b) + bias), or c += op(a) op(b) + bias; what else options asks for is
/// not done.
void host_product(Context& context, const Extents& extents, const ConstTensorView& a,
                  const ConstTensorView& b, const TensorView& c, const MatmulOptions& options) {
  if (a.dtype() == DType::kFloat64) {
    double_matmul(context, extents, a, b, c, options);
    return;
  }
  for (const ConstTensorView& tensor : {a, b, options.bias, ConstTensorView(c)}) {
    require_memory_space(context, tensor);
  }
  if (options.row_bits == RowBits::kOfRow) {
    row_product(context, a, b, options.bias, c, options.accumulate);
    return;
  }
  const ProductOperands at{a.raw(), b.raw(), options.bias.raw(), c.raw()};
  const bool plain = options.transpose_a == Transpose::kNo && options.transpose_b == Transpose::kNo;
  if (plain && extents.k > kDeep) {
    deep_product(context, extents, a.dtype(), c.dtype(), at, options);
  } else {
    TiledProduct(extents, a.dtype(), c.dtype(), at, options).run(context);
  }
}

/// A product with longer rows, which only GPUs' models have: their tensors are packed first.
void product_of_padded(Context& context, const Extents& extents, const ConstTensorView& a,
                       const ConstTensorView& b, const TensorView& c, MatmulOptions options) {
  options.padded_rows = false;
  const Shape packed_a{a.shape()[0],
                       options.transpose_a == Transpose::kYes ? extents.m : extents.k};
  const Shape packed_c{extents.m, extents.n};
  const auto bytes_of = [](const Shape& shape, DType dtype) {
    return shape.count() * size_bytes(dtype);
  };
  const device::Buffer a_memory(context.device(), bytes_of(packed_a, a.dtype()));
  const TensorView left = a_memory.view(0, packed_a, a.dtype());
  narrow_rows(context, a, left);
  if (c.shape() == packed_c) {
    matmul(context, left, b, c, options);
    return;
  }
  const device::Buffer c_memory(context.device(), bytes_of(packed_c, c.dtype()));
  const TensorView result = c_memory.view(0, packed_c, c.dtype());
  matmul(context, left, b, result, options);
  widen_rows(context, result, c);
}

/// A GPU's product with bits of rows: tiles of one shape, for which the library has one kernel.
void product_of_row_tiles(Context& context, const ConstTensorView& a, const ConstTensorView& b,
                          const TensorView& c, const MatmulOptions& options) {
  const std::int64_t rows = a.shape()[0];
  require(rows % kRowTile == 0, "a product with bits of rows of {} rows on a GPU", rows);
  for (std::int64_t first = 0; first < rows; first += kRowTile) {
    const auto tile = [&](const auto& tensor) {
      return tensor.empty()
                 ? tensor
                 : tensor.flat_slice(first * tensor.shape()[1], kRowTile * tensor.shape()[1])
                       .reshaped(Shape{kRowTile, tensor.shape()[1]});
    };
    MatmulOptions of_tile = options;
    of_tile.row_bits = RowBits::kOfShape;
    of_tile.addend = tile(options.addend);
    of_tile.pre_activation = tile(options.pre_activation);
    matmul(context, tile(a), b, tile(c), of_tile);
  }
}

}  // namespace

void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c, const MatmulOptions& options) {
  const Extents extents = extents_of(a, b, c, options);
  if (c.count() == 0) {
    return;
  }
  require_options(c, options);
  if (options.row_bits == RowBits::kOfRow &&
      context.device().memory_space() != MemorySpace::kHost) {
    product_of_row_tiles(context, a, b, c, options);
    return;
  }
  const Observed observed(context, [&] { return product_work(extents, a, b, c, options); });
  if (observed.handled_by<cuda::matmul>(a, b, c, options)) {
    return;
  }
  MatmulOptions product = options;
  if (options.padded_rows) {
    const std::int64_t used = options.transpose_a == Transpose::kYes ? extents.m : extents.k;
    if (a.shape()[1] != used || c.shape()[1] != extents.n) {
      product_of_padded(context, extents, a, b, c, options);
      return;
    }
  }
  if (!options.addend.empty()) {
    if (options.addend.raw() != c.raw()) {
      copy(context, options.addend, c);
    }
    product.accumulate = Accumulate::kAdd;
  }
  if (options.activation == Activation::kGelu) {
    product.activation = Activation::kNone;
    host_product(context, extents, a, b, options.pre_activation, product);
    activation_forward(context, Activation::kGelu, options.pre_activation, c);
    return;
  }
  host_product(context, extents, a, b, c, product);
  if (!options.gelu_gradient_of.empty()) {
    activation_backward(context, Activation::kGelu, options.gelu_gradient_of, {}, c, c);
  }
}

}  // namespace strata::ops
