#include <algorithm>

#include "strata/core/digest_terms.hpp"

#include "cuda/kernel.hpp"
#include "reduce/cuda_digest.hpp"

namespace strata::ops::cuda {
namespace {

/// Stores the sum of a block's terms. Their order does not matter: they are integers.
__device__ void store_sum(const DigestTerms& terms, DigestTerms* to) {
  __shared__ std::uint64_t sums[kThreads];
  __shared__ std::uint64_t checks[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = terms.sum;
  checks[thread] = terms.check;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) {
      sums[thread] += sums[thread + half];
      checks[thread] += checks[thread + half];
    }
    __syncthreads();
  }
  if (thread == 0) {
    to->sum = sums[0];
    to->check = checks[0];
  }
}

/// A block adds every blocks-th run of kThreads elements.
template <typename Bits>
__global__ void __launch_bounds__(kThreads)
    digest_kernel(const Bits* x, std::int64_t count, std::uint64_t tensor, DigestPlaces places,
                  std::int64_t blocks, DigestTerms* of_block) {
  DigestTerms terms;
  for (std::int64_t i = thread_number(); i < count; i += blocks * kThreads) {
    terms.add(tensor, places.of(i), x[i]);
  }
  store_sum(terms, of_block + blockIdx.x);
}

/// One block adds what the others stored.
__global__ void __launch_bounds__(kThreads)
    digest_sum_kernel(const DigestTerms* of_block, std::int64_t blocks, DigestTerms* sum) {
  DigestTerms terms;
  for (std::int64_t block = threadIdx.x; block < blocks; block += kThreads) {
    terms.sum += of_block[block].sum;
    terms.check += of_block[block].check;
  }
  store_sum(terms, sum);
}

}  // namespace

ConstTensorView digest_terms(Context& context, std::uint64_t tensor, const ConstTensorView& x,
                             const DigestPlaces& places) {
  constexpr std::int64_t kMostBlocks = 1024;
  const std::int64_t blocks = std::min(count_of(x.count(), kThreads), kMostBlocks);
  DigestTerms* const of_block = scratch_of<DigestTerms>(context, blocks + 1);
  DigestTerms* const sum = of_block + blocks;
  with_floating(x.dtype(), [&]<typename T>(T) {
    using Bits =
        std::conditional_t<sizeof(T) == sizeof(std::uint64_t), std::uint64_t, std::uint32_t>;
    launch(context, "digest", {blocks, kThreads, 0}, digest_kernel<Bits>,
           reinterpret_cast<const Bits*>(x.template device<T>()), x.count(), tensor, places, blocks,
           of_block);
  });
  launch(context, "digest_sum", {1, kThreads, 0}, digest_sum_kernel, of_block, blocks, sum);
  return {reinterpret_cast<const std::byte*>(sum), Shape{2}, DType::kInt64, MemorySpace::kCuda};
}

}  // namespace strata::ops::cuda
