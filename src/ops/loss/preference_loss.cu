#include "strata/ops/preference_loss.hpp"

#include "cuda/ops.hpp"
#include "loss/cuda_loss.hpp"
#include "loss/preference_row.hpp"

namespace strata::ops::cuda {
namespace {

/// One block for each sample: each thread every kThreads-th token, then a tree.
template <typename C>
__global__ void preference_kernel(std::int64_t shards, std::int64_t rows, std::int64_t width,
                                  std::int64_t tokens, const C* parts, const C* log_sums,
                                  const std::int64_t* targets, const std::uint32_t* starts,
                                  const double* references, double beta, std::int64_t vocabulary,
                                  std::int64_t valid, C* row_scales, double* pairs) {
  const RowThreads<kThreads> threads{static_cast<int>(threadIdx.x)};
  const std::int64_t sample = blockIdx.x;
  const std::int64_t end = (sample + 1) * tokens;
  double difference = 0.0;
  for (std::int64_t row = sample * tokens + threadIdx.x; row < end; row += kThreads) {
    const auto part = [=](std::int64_t shard, std::int64_t value) {
      return static_cast<double>(parts[(shard * rows + row) * width + value]);
    };
    if (is_target(targets[row], vocabulary)) {
      difference +=
          signed_likelihood(shards, part, static_cast<double>(log_sums[row]), starts[row] > 0);
    }
  }
  difference = threads.sum(difference);
  const double margin = beta * (difference - references[sample]);
  const double weight = sample < valid ? beta * preference_weight(margin) : 0.0;
  for (std::int64_t row = sample * tokens + threadIdx.x; row < end; row += kThreads) {
    const double own = is_target(targets[row], vocabulary) ? weight : 0.0;
    row_scales[row] = static_cast<C>(starts[row] > 0 ? -own : own);
  }
  if (threadIdx.x == 0) {
    pairs[sample * kPairElements] = difference;
    pairs[sample * kPairElements + 1] = margin;
  }
}

/// One thread: samples are few. What `sums` says of bad targets stays.
__global__ void preference_sums_kernel(std::int64_t valid, const double* pairs, LossSums* sums) {
  if (threadIdx.x == 0) {
    add_pairs(valid, pairs, *sums);
  }
}

}  // namespace

void preference_loss(Context& context, const ConstTensorView& parts,
                     const ConstTensorView& log_sums, const ConstTensorView& targets,
                     const ConstTensorView& document_starts, const ConstTensorView& references,
                     double beta, std::int64_t vocabulary, std::int64_t valid_samples,
                     const TensorView& row_scales, const TensorView& pairs,
                     const TensorView& sums) {
  const std::int64_t samples = targets.shape()[0];
  with_floating(parts.dtype(), [&]<typename C>(C) {
    launch(context, "preference_loss", {samples, kThreads, 0}, preference_kernel<C>,
           parts.shape()[0], parts.shape()[1], parts.shape()[2], targets.shape()[1],
           parts.device<C>(), log_sums.device<C>(), targets.device<std::int64_t>(),
           document_starts.device<std::uint32_t>(), references.device<double>(), beta, vocabulary,
           valid_samples, row_scales.device<C>(), pairs.device<double>());
  });
  launch(context, "adding preference losses", {1, kThreads, 0}, preference_sums_kernel,
         valid_samples, static_cast<const double*>(pairs.device<double>()),
         reinterpret_cast<LossSums*>(sums.device<std::int64_t>()));
}

}  // namespace strata::ops::cuda
