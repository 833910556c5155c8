#include "strata/core/dtype.hpp"
#include "strata/ops/matmul.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/column_sums.hpp"

namespace strata::ops {

void column_sum(Context& context, const ConstTensorView& x, const TensorView& sum,
                Accumulate accumulate) {
  const ColumnSum one{x, sum};
  column_sums(context, std::span(&one, 1), accumulate);
}

void column_sums(Context& context, std::span<const ColumnSum> sums, Accumulate accumulate) {
  if (sums.empty()) {
    return;
  }
  const Observed observed(context, "column_sum", sums.front().x);
  const DType dtype = sums.front().x.dtype();
  const std::int64_t rows = rows_of(sums.front().x.shape()).rows;
  for (const ColumnSum& each : sums) {
    const Rows shape = rows_of(each.x.shape());
    require(each.x.dtype() == dtype && shape.rows == rows, "column sums of {} x {} beside {} x {}",
            shape.rows, name_of(each.x.dtype()), rows, name_of(dtype));
    require_count(each.sum, compute_dtype(dtype), shape.columns, "column_sum's sum");
  }
  if (observed.handled_by<cuda::column_sums>(sums, accumulate)) {
    return;
  }
  with_stored(dtype, [&]<typename T>(T) {
    using C = Compute<T>;
    for (const ColumnSum& each : sums) {
      const std::int64_t n = rows_of(each.x.shape()).columns;
      const T* from = each.x.host<T>().data();
      sum_over_rows<C>(
          context, rows, n, accumulate, each.sum.host<C>().data(),
          [=](std::int64_t row, std::int64_t j) { return static_cast<C>(from[row * n + j]); });
    }
  });
}

}  // namespace strata::ops
