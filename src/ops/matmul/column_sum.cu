#include "strata/ops/matmul.hpp"

#include "checks.hpp"
#include "cuda/column_sums.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

template <typename T>
struct Element {
  const T* x;
  std::int64_t columns;

  __device__ Compute<T> operator()(std::int64_t row, std::int64_t j) const {
    return value_of(x[row * columns + j]);
  }
};

}  // namespace

void column_sum(Context& context, const ConstTensorView& x, const TensorView& sum,
                Accumulate accumulate) {
  const Rows shape = rows_of(x.shape());
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    sum_over_rows<C>(context, "column_sum", shape.rows, shape.columns, accumulate, sum.device<C>(),
                     Element<T>{x.device<T>(), shape.columns});
  });
}

}  // namespace strata::ops::cuda
