#pragma once

#include <span>

#include "strata/core/tensor.hpp"
#include "strata/ops/activation.hpp"

namespace strata::ops {

class Context;

/// Whether a product reads a matrix transposed.
enum class Transpose { kNo, kYes };

/// Whether a result overwrites a tensor or is added to it.
enum class Accumulate { kOverwrite, kAdd };

/// Rows of this many elements suit the products of GPUs: 16 bytes of bfloat16, which their copies
/// to shared memory need. A bfloat16 product with an odd extent takes 5 to 7 times as long.
inline constexpr std::int64_t kPaddedRow = 8;

/// The elements of a row of `count`, rounded up to a multiple.
constexpr std::int64_t padded_row(std::int64_t count, std::int64_t multiple = kPaddedRow) {
  return (count + multiple - 1) / multiple * multiple;
}

/// What the bits of a row of a product depend on.
enum class RowBits {
  kOfShape,  ///< besides its row of a and on b, on the number of rows too
  kOfRow     ///< not on the other rows of a, nor on their number
};

/// GPUs compute products with RowBits::kOfRow so many rows at a time.
inline constexpr std::int64_t kRowTile = 8;

struct MatmulOptions {
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  Accumulate accumulate = Accumulate::kOverwrite;
  /// Added to every row of the product; empty for no bias. Shape: n.
  ConstTensorView bias = {};
  /// Applied last. Pre: kNone, kRelu or kGelu; kNone with kAdd or an addend.
  Activation activation = Activation::kNone;
  /// Added to the product; empty for none. May be c. Pre: kOverwrite. Same dtype and shape as c.
  ConstTensorView addend = {};
  /// Receives the argument of kGelu. Pre: non-empty exactly with kGelu; not c. Same dtype and shape
  /// as c.
  TensorView pre_activation = {};
  /// Pre-activation whose GELU gradient scales the product; empty for no scaling. Pre: neither bias
  /// nor activation nor addend, kOverwrite; not c. Same dtype and shape as c.
  ConstTensorView gelu_gradient_of = {};
  /// Allows longer rows: of c where b is transposed, else of a; m, n and k are then those of b and
  /// c. Further elements of a row of c become 0. Pre: those of a are 0 unless a is transposed. No
  /// other options but transposes and `accumulate`; kOverwrite where c has longer rows.
  bool padded_rows = false;
  /// kOfRow is for few rows. Pre: a is not transposed and b is, no kRelu; on a GPU m is a multiple
  /// of kRowTile.
  RowBits row_bits = RowBits::kOfShape;
};

/// c = activation(op(a) op(b) + bias) + addend, or c += op(a) op(b) + bias, or c = op(a) op(b)
/// gelu'(gelu_gradient_of).
/// Shapes: op(a) m x k, op(b) k x n, c m x n; a and b of one dtype, float32, float64 or bfloat16; c
/// of the same, or float32 where they are bfloat16; bias of a's dtype. Bits depend only on shapes
/// and options. The CPU gives the bits of separate operations: copy the addend to c and accumulate
/// the product, or round the product and apply activation_forward() or activation_backward(). A
/// GPU's epilogue may round c only once, so c can differ from activation_forward() of
/// pre_activation.
void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c, const MatmulOptions& options = {});

/// sum[j] = sum over i of x[i, j], the gradient of a bias. The order of the sum depends only on the
/// number of rows.
/// Shapes: x rows x n (any leading dimensions count as rows), sum n in compute_dtype() of x.
void column_sum(Context& context, const ConstTensorView& x, const TensorView& sum,
                Accumulate accumulate);

/// One of several column_sum()s.
struct ColumnSum {
  ConstTensorView x;
  TensorView sum;
};

/// column_sum() of each. Pre: all x have one dtype and as many rows.
void column_sums(Context& context, std::span<const ColumnSum> sums, Accumulate accumulate);

}  // namespace strata::ops
