#include "strata/core/dtype.hpp"
#include "strata/ops/matmul.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "simd/column_sums.hpp"

namespace strata::ops {

void column_sum(Context& context, const ConstTensorView& x, const TensorView& sum,
                Accumulate accumulate) {
  const auto [rows, n] = rows_of(x.shape());
  require_count(sum, compute_dtype(x.dtype()), n, "column_sum's sum");
  if (run_on_gpu<cuda::column_sum>(context, x, sum, accumulate)) {
    return;
  }
  with_stored(x.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    using C = Compute<T>;
    const T* from = x.host<T>().data();
    sum_over_rows<C>(
        context, rows, n, accumulate, sum.host<C>().data(),
        [=](std::int64_t row, std::int64_t j) { return static_cast<C>(from[row * n + j]); });
  });
}

}  // namespace strata::ops
