#include <algorithm>

#include "strata/ops/matmul.hpp"

#include "checks.hpp"
#include "cuda/column_sums.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

/// Matrices that one launch sums, side by side.
constexpr std::size_t kMostMatrices = 4;

/// The columns of several matrices in a row. Tiles lie within one matrix.
template <typename T>
struct Elements {
  static constexpr int kSums = 1;

  const T* x[kMostMatrices];
  Compute<T>* sums[kMostMatrices];
  /// Where each matrix begins, and the end.
  std::int64_t begin[kMostMatrices + 1];
  bool adds;

  __device__ int matrix_of(std::int64_t column) const {
    int m = 0;
    while (column >= begin[m + 1]) {
      ++m;
    }
    return m;
  }

  template <int kWidth>
  __device__ auto of_columns(std::int64_t j) const {
    const int m = matrix_of(j);
    return [from = x[m] + (j - begin[m]), n = begin[m + 1] - begin[m]](std::int64_t row,
                                                                       Compute<T>* to) {
      const auto values = elements_at<kWidth>(from + row * n);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        to[i] += value_of(values.at[i]);
      }
    };
  }
  /// Stores the sum of a column.
  __device__ void operator()(std::int64_t /*number*/, std::int64_t column, double sum) const {
    const int m = matrix_of(column);
    Compute<T>* const to = sums[m] + (column - begin[m]);
    const auto rounded = static_cast<Compute<T>>(sum);
    *to = adds ? *to + rounded : rounded;
  }
};

}  // namespace

void column_sums(Context& context, std::span<const ColumnSum> sums, Accumulate accumulate) {
  // Where all tiles are whole.
  constexpr std::int64_t kTile = kColumnThreads * 8;
  const bool together = std::ranges::all_of(
      sums, [&](const ColumnSum& each) { return rows_of(each.x.shape()).columns % kTile == 0; });
  const std::size_t step = together ? kMostMatrices : 1;
  for (std::size_t first = 0; first < sums.size(); first += step) {
    const auto some = sums.subspan(first, std::min(step, sums.size() - first));
    with_device_type(some.front().x.dtype(), [&]<typename T>(T) {
      Elements<T> elements{};
      elements.adds = accumulate == Accumulate::kAdd;
      for (std::size_t m = 0; m < kMostMatrices; ++m) {
        const ColumnSum& each = some[std::min(m, some.size() - 1)];
        elements.x[m] = each.x.template device<T>();
        elements.sums[m] = each.sum.template device<Compute<T>>();
        elements.begin[m + 1] =
            elements.begin[m] + (m < some.size() ? rows_of(each.x.shape()).columns : 0);
      }
      const Rows shape{rows_of(some.front().x.shape()).rows, elements.begin[kMostMatrices]};
      sum_over_rows<Compute<T>>(context, "column_sums", shape, elements, elements, elements.x[0],
                                elements.x[1], elements.x[2], elements.x[3]);
    });
  }
}

}  // namespace strata::ops::cuda
