#include "products.hpp"

namespace strata::ops::matmul_bfloat16_test {
namespace {

using namespace test;

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

template <typename T, typename C>
struct Dtypes {
  using Operand = T;
  using Result = C;
};

template <typename Pair>
class MatmulShards : public testing::Test {};
using Pairs =
    testing::Types<Dtypes<float, float>, Dtypes<BFloat16, float>, Dtypes<BFloat16, BFloat16>>;
TYPED_TEST_SUITE(MatmulShards, Pairs);

// Design law 1 needs no more of the library: every grid computes a shard by a product of the
// shard's own shape, but on other ranks, by other threads and at other addresses. Widths and depths
// in the proportions of GPT-2's layers, a sixth of their size, and of a small character model, in 1
// shard and in 4.
TYPED_TEST(MatmulShards, BitsDependOnNeitherThreadsNorAlignment) {
  test::expect_same_product_bits<typename TypeParam::Operand, typename TypeParam::Result>(
      {{64, 384, 128},
       {64, 96, 128},
       {64, 128, 32},
       {64, 512, 128},
       {64, 128, 512},
       {768, 96, 128},
       {96, 128, 768},
       {64, 8376, 128},
       {64, 2094, 128},
       {256, 768, 768},
       {256, 64, 8376},
       {256, 64, 2094}},
      {1, 2});
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
}  // namespace strata::ops::matmul_bfloat16_test
