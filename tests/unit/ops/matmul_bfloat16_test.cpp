#include "products.hpp"

namespace strata::ops {
namespace {

using test::expect_rounded;
using test::kTransposes;
using test::Operands;
using test::ProductSize;
using test::randoms;
using test::stored;
using test::Tensor;

template <typename C>
class MatmulBfloat16 : public testing::Test {};
using Results = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(MatmulBfloat16, Results);

TYPED_TEST(MatmulBfloat16, AgreesWithPlainLoopsInEveryForm) {
  using C = TypeParam;
  test::expect_plain_products<BFloat16, C>(
      [](const ProductSize& size, std::span<const C> results, const std::vector<double>& expected) {
        // Products of two bfloat16 are exact in float; each of k + 2 additions may be off by half a
        // unit of a sum that stays below 3.1 a term.
        const double terms = static_cast<double>(size.k + 2);
        expect_rounded<C>(results, expected, 3.1 * terms, terms * 0x1p-24);
      });
}

TYPED_TEST(MatmulBfloat16, BitsDependOnNeitherThreadsNorAlignment) {
  test::expect_same_product_bits<BFloat16, TypeParam>({{128, 128, 784},
                                                       {128, 10, 128},
                                                       {1, 2049, 77},
                                                       {513, 65, 33},
                                                       {1030, 520, 3},
                                                       {7, 4100, 129},
                                                       {3, 5, 4000},
                                                       {600, 700, 31},
                                                       {140, 5, 9001}},
                                                      {1, 3});
}

/// The rows, or columns, [begin, begin + count) of a stored matrix.
template <typename T>
Tensor<T> part_of(const Tensor<T>& whole, const Shape& shape, std::int64_t dimension,
                  std::int64_t begin, std::int64_t count) {
  Tensor<T> part(dimension == 0 ? Shape{count, shape[1]} : Shape{shape[0], count});
  const std::int64_t columns = dimension == 0 ? shape[1] : count;
  for (std::int64_t i = 0; i < part.view().count(); ++i) {
    const std::int64_t row = i / columns + (dimension == 0 ? begin : 0);
    const std::int64_t column = i % columns + (dimension == 1 ? begin : 0);
    part[i] = whole[row * shape[1] + column];
  }
  return part;
}

template <typename T, typename C>
struct Dtypes {
  using Operand = T;
  using Result = C;
};

template <typename Pair>
class MatmulBlocks : public testing::Test {};
using Pairs =
    testing::Types<Dtypes<float, float>, Dtypes<BFloat16, float>, Dtypes<BFloat16, BFloat16>>;
TYPED_TEST_SUITE(MatmulBlocks, Pairs);

// What lets a product be cut by columns of b or rows of a among ranks (design law 1).
TYPED_TEST(MatmulBlocks, ABlockAloneHasTheBitsThatItHasInTheWhole) {
  using T = typename TypeParam::Operand;
  using C = typename TypeParam::Result;
  Context context(1);
  // Widths and depths in the proportions of GPT-2's layers, a sixth of their size, and of a small
  // character model.
  for (const ProductSize& size :
       {ProductSize{64, 384, 128}, ProductSize{64, 128, 128}, ProductSize{64, 512, 128},
        ProductSize{64, 128, 512}, ProductSize{768, 384, 128}, ProductSize{384, 128, 768},
        ProductSize{64, 8376, 128}, ProductSize{256, 768, 768}, ProductSize{256, 64, 8376}}) {
    for (const Transpose transpose_a : kTransposes) {
      for (const Transpose transpose_b : kTransposes) {
        Operands<T, C> whole(size, transpose_a, transpose_b);
        const MatmulOptions options{transpose_a, transpose_b, Accumulate::kAdd};
        const Tensor<C> before = randoms<C>({size.m, size.n}, 4);
        matmul(context, whole.a.view(), whole.b.view(), whole.c.view(), options);
        for (const std::int64_t pieces : {2, 4}) {
          const std::int64_t n = size.n / pieces;
          const std::int64_t m = size.m / pieces;
          const auto b = part_of(whole.b, stored(size.k, size.n, transpose_b),
                                 transpose_b == Transpose::kYes ? 0 : 1, size.n - n, n);
          auto c = part_of(before, {size.m, size.n}, 1, size.n - n, n);
          matmul(context, whole.a.view(), b.view(), c.view(), options);
          ASSERT_TRUE(part_of(whole.c, {size.m, size.n}, 1, size.n - n, n).values() == c.values())
              << size << " in " << pieces << " blocks of columns";
          const auto a = part_of(whole.a, stored(size.m, size.k, transpose_a),
                                 transpose_a == Transpose::kYes ? 1 : 0, size.m - m, m);
          c = part_of(before, {size.m, size.n}, 0, size.m - m, m);
          matmul(context, a.view(), whole.b.view(), c.view(), options);
          ASSERT_TRUE(part_of(whole.c, {size.m, size.n}, 0, size.m - m, m).values() == c.values())
              << size << " in " << pieces << " blocks of rows";
        }
      }
    }
  }
}

TEST(MatmulBfloat16Errors, ChecksDtypes) {
  Context context(1);
  const auto a = randoms<BFloat16>({3, 4}, 1);
  const auto b = randoms<BFloat16>({4, 6}, 1);
  const auto wide = randoms<float>({4, 6}, 1);
  const auto bias = randoms<float>({6}, 1);
  Tensor<float> c({3, 6});
  Tensor<double> wider({3, 6});
  EXPECT_THROW(matmul(context, a.view(), wide.view(), c.view()), std::logic_error);
  EXPECT_THROW(matmul(context, a.view(), b.view(), wider.view()), std::logic_error);
  EXPECT_THROW(matmul(context, a.view(), b.view(), c.view(), {.bias = bias.view()}),
               std::logic_error);
  EXPECT_NO_THROW(matmul(context, a.view(), b.view(), c.view()));
}

}  // namespace
}  // namespace strata::ops
