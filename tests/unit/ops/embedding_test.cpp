#include "strata/ops/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tensors.hpp"

namespace strata::ops::embedding_test {
namespace {

using namespace test;

constexpr std::int64_t kRows = 131;
constexpr std::int64_t kIds = 29;
constexpr std::int64_t kColumns = 601;
constexpr Accumulate kBoth[] = {Accumulate::kOverwrite, Accumulate::kAdd};

/// Ids from -2 to kIds + 3, many of them more than once.
Tensor<std::int64_t> some_ids() {
  Tensor<std::int64_t> ids({kRows});
  for (std::int64_t row = 0; row < kRows; ++row) {
    ids[row] = (row * row * 7 + row) % (kIds + 6) - 2;
  }
  return ids;
}

bool has(std::int64_t id, std::int64_t first_id) {
  return id >= first_id && id < first_id + kIds;
}

template <typename T>
class EmbeddingTyped : public testing::Test {};
using Types = testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(EmbeddingTyped, Types);

template <typename T, typename Y>
void check_forward(Accumulate accumulate, std::int64_t first_id) {
  const auto ids = some_ids();
  const auto table = randoms<T>({kIds, kColumns}, 1);
  for (const int threads : {1, 3}) {
    Context context(threads);
    auto y = randoms<Y>({kRows, kColumns}, 2, 1.0, 1);
    const auto before = y.values();
    embedding_forward(context, ids.view(), table.view(), first_id, y.view(), accumulate);
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
      using C = Compute<T>;
      const std::int64_t id = ids[i / kColumns];
      C expected = accumulate == Accumulate::kAdd
                       ? static_cast<C>(before[static_cast<std::size_t>(i)])
                       : C{0};
      if (has(id, first_id)) {
        expected += static_cast<C>(table[(id - first_id) * kColumns + i % kColumns]);
      }
      ASSERT_EQ(y[i], static_cast<Y>(expected)) << i;
    }
  }
}

TYPED_TEST(EmbeddingTyped, LooksUpTheRowsThatItHas) {
  for (const Accumulate accumulate : kBoth) {
    for (const std::int64_t first_id : {0, 4}) {
      check_forward<TypeParam, TypeParam>(accumulate, first_id);
      check_forward<TypeParam, Compute<TypeParam>>(accumulate, first_id);
    }
  }
}

TEST(Embedding, ReadsMinusZeroAsZero) {
  Context context(1);
  Tensor<std::int64_t> ids({1});
  Tensor<float> table({1, 3});
  std::fill(table.elements().begin(), table.elements().end(), -0.0F);
  Tensor<float> y({1, 3});
  embedding_forward(context, ids.view(), table.view(), 0, y.view(), Accumulate::kOverwrite);
  for (const float element : y.elements()) {
    EXPECT_FALSE(std::signbit(element));
  }
}

TYPED_TEST(EmbeddingTyped, BackwardAddsManyRowsOfAnIdInPieces) {
  using T = TypeParam;
  using C = Compute<T>;
  constexpr std::int64_t kMany = 200;
  constexpr std::int64_t kPiece = 64;
  Tensor<std::int64_t> ids({kMany});
  for (std::int64_t row = 0; row < kMany; ++row) {
    ids[row] = 2;
  }
  const auto dy = randoms<T>({kMany, kColumns}, 3);
  for (const Accumulate accumulate : kBoth) {
    Context context(3);
    auto dtable = randoms<C>({kIds, kColumns}, 4, 1.0, 3);
    const auto before = dtable.values();
    embedding_backward(context, ids.view(), dy.view(), 0, dtable.view(), accumulate);
    for (std::int64_t column = 0; column < kColumns; ++column) {
      const std::int64_t at = 2 * kColumns + column;
      C expected{0};
      for (std::int64_t begin = 0; begin < kMany; begin += kPiece) {
        C piece{0};
        for (std::int64_t row = begin; row < std::min(begin + kPiece, kMany); ++row) {
          piece += static_cast<C>(dy[row * kColumns + column]);
        }
        expected = begin == 0 && accumulate == Accumulate::kAdd
                       ? before[static_cast<std::size_t>(at)] + piece
                       : expected + piece;
      }
      ASSERT_EQ(dtable[at], expected) << column;
    }
  }
}

TYPED_TEST(EmbeddingTyped, BackwardAddsRowsInOrder) {
  using T = TypeParam;
  using C = Compute<T>;
  const auto ids = some_ids();
  const auto dy = randoms<T>({kRows, kColumns}, 3);
  for (const Accumulate accumulate : kBoth) {
    for (const std::int64_t first_id : {0, 4}) {
      Tensor<C> sums({kIds, kColumns});
      for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
        const std::int64_t id = ids[i / kColumns];
        if (has(id, first_id)) {
          sums[(id - first_id) * kColumns + i % kColumns] += static_cast<C>(dy[i]);
        }
      }
      for (const int threads : {1, 3}) {
        Context context(threads);
        auto dtable = randoms<C>({kIds, kColumns}, 4, 1.0, 3);
        const auto before = dtable.values();
        embedding_backward(context, ids.view(), dy.view(), first_id, dtable.view(), accumulate);
        for (std::int64_t i = 0; i < kIds * kColumns; ++i) {
          ASSERT_EQ(dtable[i], accumulate == Accumulate::kAdd
                                   ? before[static_cast<std::size_t>(i)] + sums[i]
                                   : sums[i])
              << i;
        }
      }
    }
  }
}

TYPED_TEST(EmbeddingTyped, SlicesOfTheTableAddUpToTheWhole) {
  using T = TypeParam;
  Context context(1);
  constexpr std::int64_t kAll = 37;
  const auto ids = some_ids();
  const auto table = randoms<T>({kAll, kColumns}, 1);
  Tensor<Compute<T>> whole({kRows, kColumns});
  embedding_forward(context, ids.view(), table.view(), 0, whole.view(), Accumulate::kOverwrite);
  Tensor<Compute<T>> sum({kRows, kColumns});
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 13}, {13, 24}}) {
    const auto slice = table.view().flat_slice(first * kColumns, count * kColumns);
    embedding_forward(context, ids.view(), slice.reshaped({count, kColumns}), first, sum.view(),
                      Accumulate::kAdd);
  }
  EXPECT_TRUE(whole.values() == sum.values());
}

template <typename T, typename X>
void check_positions() {
  using C = Compute<T>;
  constexpr std::int64_t kTokens = 11;
  const auto x = randoms<X>({kRows, kColumns}, 1);
  const auto table = randoms<T>({kTokens + 2, kColumns}, 2);
  for (const int threads : {1, 3}) {
    Context context(threads);
    Tensor<T> y({kRows, kColumns}, 1);
    add_positions(context, x.view(), table.view(), {kTokens, 4, 2}, y.view());
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
      const std::int64_t position = (4 + i / kColumns) % kTokens + 2;
      const C sum =
          static_cast<C>(x[i]) + static_cast<C>(table[position * kColumns + i % kColumns]);
      ASSERT_EQ(y[i], static_cast<T>(sum));
    }
  }
}

TYPED_TEST(EmbeddingTyped, AddsPositions) {
  check_positions<TypeParam, TypeParam>();
  check_positions<TypeParam, Compute<TypeParam>>();
}

TYPED_TEST(EmbeddingTyped, PositionsBackwardAddsSequencesInOrder) {
  using T = TypeParam;
  using C = Compute<T>;
  constexpr std::int64_t kTokens = 7;
  constexpr std::int64_t kSequences = 5;
  constexpr std::int64_t kPositions = 9;
  const auto dy = randoms<T>({kSequences * kTokens, kColumns}, 1);
  for (const Accumulate accumulate : kBoth) {
    for (const int threads : {1, 3}) {
      Context context(threads);
      auto dtable = randoms<C>({kPositions, kColumns}, 2);
      const auto before = dtable.values();
      positions_backward(context, dy.view(), kTokens, dtable.view(), accumulate);
      for (std::int64_t i = 0; i < kPositions * kColumns; ++i) {
        C sum = 0;
        for (std::int64_t sequence = 0; i < kTokens * kColumns && sequence < kSequences;
             ++sequence) {
          sum += static_cast<C>(dy[sequence * kTokens * kColumns + i]);
        }
        ASSERT_EQ(dtable[i],
                  accumulate == Accumulate::kAdd ? before[static_cast<std::size_t>(i)] + sum : sum);
      }
    }
  }
}

TEST(Embedding, ChecksWhatItIsGiven) {
  Context context(1);
  Tensor<std::int64_t> ids({2});
  Tensor<float> table({4, 3});
  Tensor<float> y({2, 3});
  Tensor<float> wide({2, 5});
  Tensor<double> other({2, 3});
  EXPECT_THROW(
      embedding_forward(context, ids.view(), table.view(), 0, wide.view(), Accumulate::kOverwrite),
      std::logic_error);
  EXPECT_THROW(
      embedding_forward(context, ids.view(), table.view(), 0, other.view(), Accumulate::kOverwrite),
      std::logic_error);
  EXPECT_THROW(embedding_backward(context, ids.view(), other.view(), 0, table.view(),
                                  Accumulate::kOverwrite),
               std::logic_error);
  EXPECT_THROW(add_positions(context, y.view(), table.view(), {4, 0, 3}, y.view()),
               std::logic_error);
  EXPECT_NO_THROW(add_positions(context, y.view(), table.view(), {4, 0, 2}, y.view()));
  EXPECT_THROW(positions_backward(context, y.view(), 5, table.view(), Accumulate::kOverwrite),
               std::logic_error);
}

}  // namespace
}  // namespace strata::ops::embedding_test
