#include "strata/ops/matmul.hpp"

#include "checks.hpp"
#include "cuda/column_sums.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

template <typename T>
struct Element {
  static constexpr int kSums = 1;

  const T* x;
  std::int64_t columns;

  template <int kWidth>
  __device__ auto of_columns(std::int64_t j) const {
    return [from = x + j, n = columns](std::int64_t row, Compute<T>* sums) {
      const auto values = elements_at<kWidth>(from + row * n);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        sums[i] += value_of(values.at[i]);
      }
    };
  }
};

}  // namespace

void column_sum(Context& context, const ConstTensorView& x, const TensorView& sum,
                Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = x.device<T>();
    sum_over_rows<C>(context, "column_sum", shape, Element<T>{from, shape.columns},
                     StoreSums<C>{sum.device<C>(), nullptr, accumulate == Accumulate::kAdd}, from);
  });
}

}  // namespace strata::ops::cuda
