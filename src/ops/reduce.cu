#include "strata/ops/reduce.hpp"

#include "cuda_map.hpp"
#include "cuda_ops.hpp"
#include "cuda_rows.hpp"

namespace strata::ops::cuda {
namespace {

struct Add {
  template <typename T>
  __device__ void operator()(T from, T& into) const {
    into += from;
  }
};

/// The "row" is a block of x; the last may be short.
template <typename T>
struct SumOfSquares {
  const T* x;
  std::int64_t count;
  std::int64_t block_elements;
  double* out;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t block) const {
    const std::int64_t first = block * block_elements;
    const std::int64_t end = first + block_elements < count ? first + block_elements : count;
    double part = 0.0;
    for (std::int64_t i = first + threads.lane; i < end; i += kSize) {
      const double value = static_cast<double>(x[i]);
      part = fused(value, value, part);
    }
    const double sum = threads.sum(part);
    if (threads.lane == 0) {
      out[block] = sum;
    }
  }
};

}  // namespace

void fold(Context& context, std::span<const TensorView> parts, std::span<const FoldPair> steps) {
  with_floating(parts[0].dtype(), [&]<typename T>(T) {
    for (const FoldPair& step : steps) {
      map(context, "fold", parts[0].count(), Add{},
          In<T>{parts[static_cast<std::size_t>(step.from)].template device<T>()},
          InOut<T>{parts[static_cast<std::size_t>(step.into)].template device<T>()});
    }
  });
}

void sum_of_squares_blocks(Context& context, const ConstTensorView& x, std::int64_t block_elements,
                           const TensorView& out) {
  const std::int64_t blocks = out.count();
  with_floating(x.dtype(), [&]<typename T>(T) {
    // As many threads for a short block as for a long one: the order is a function of its length.
    launch(context, "sum_of_squares_blocks", {blocks, kThreads, 0},
           row_kernel<kThreads, SumOfSquares<T>>, blocks,
           SumOfSquares<T>{x.device<T>(), x.count(), block_elements, out.device<double>()});
  });
}

}  // namespace strata::ops::cuda
