#include "attention/tensor_core_tiles.hpp"
#include "matrix_products.hpp"

namespace strata::ops::cuda {
namespace {

using Stored = __nv_bfloat16;

template <int kColumns>
__global__ void __launch_bounds__(kTensorCoreThreads)
    products_kernel(HeadRows<const Stored> a, HeadRows<const Stored> b, float* dots,
                    HeadRows<Stored> weighted, bool aligned) {
  Stored* const a_tile = shared_memory<Stored>();
  Stored* const b_tile = a_tile + kSide * kColumns;
  load_rows<kColumns>(a, 0, kSide, aligned, a_tile);
  load_rows<kColumns>(b, 0, kSide, aligned, b_tile);
  wait_for_copies();
  __syncthreads();
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kMatrixRows;
  const int lane = lane_number();
  SumMatrix products[kSide / kSumColumns] = {};
  add_dots<kColumns>([&](int k) { return left_of<kColumns>(a_tile, warp_row, k * kMatrixRows); },
                     b_tile, products);
  for (int j = 0; j < kSide / kSumColumns; ++j) {
    for (int i = 0; i < 4; ++i) {
      const int row = warp_row + lane / 4 + i / 2 * 8;
      dots[row * kSide + j * kSumColumns + lane % 4 * 2 + i % 2] = products[j].sums[i];
    }
  }
  SumMatrix sums[kColumns / kSumColumns] = {};
  add_weighted<kColumns>(products, b_tile, sums);
  store_sums<kColumns>(sums, {1.0F, 1.0F}, a_tile + warp_row * kColumns, weighted, warp_row, kSide,
                       aligned);
}

template <int kColumns>
void run(Context& context, const ConstTensorView& a, const ConstTensorView& b,
         const TensorView& dots, const TensorView& weighted) {
  const HeadRows<const Stored> a_rows{a.device<Stored>(), kColumns};
  const HeadRows<const Stored> b_rows{b.device<Stored>(), kColumns};
  const HeadRows<Stored> to{weighted.device<Stored>(), kColumns};
  constexpr std::int64_t kBytes = 2 * kSide * kColumns * sizeof(Stored);
  launch(context, "matrix products", {1, kTensorCoreThreads, kBytes}, products_kernel<kColumns>,
         a_rows, b_rows, dots.device<float>(), to,
         begin_at_pieces({a_rows.data, b_rows.data, to.data}));
}

}  // namespace
}  // namespace strata::ops::cuda

namespace strata::ops::test {

void matrix_products(Context& context, const ConstTensorView& a, const ConstTensorView& b,
                     const TensorView& dots, const TensorView& weighted) {
  cuda::with_matrix_head(a.shape().back(),
                         [&]<int kColumns>(std::integral_constant<int, kColumns>) {
                           cuda::run<kColumns>(context, a, b, dots, weighted);
                         });
}

}  // namespace strata::ops::test
