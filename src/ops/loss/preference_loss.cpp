#include "strata/ops/preference_loss.hpp"

#include <bit>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"
#include "strata/ops/split_cross_entropy.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "loss/preference_row.hpp"
#include "observed.hpp"

namespace strata::ops {

void preference_loss(Context& context, const ConstTensorView& parts,
                     const ConstTensorView& log_sums, const ConstTensorView& targets,
                     const ConstTensorView& document_starts, const ConstTensorView& references,
                     double beta, std::int64_t vocabulary, std::int64_t valid_samples,
                     const TensorView& row_scales, const TensorView& pairs,
                     const TensorView& sums) {
  const Observed observed(context, "preference_loss", parts, log_sums, targets, document_starts,
                          row_scales, pairs, sums);
  require(parts.shape().rank() == 3 && targets.shape().rank() == 2,
          "a preference loss of {} and {}", parts.shape().text(), targets.shape().text());
  const std::int64_t shards = parts.shape()[0];
  const std::int64_t rows = parts.shape()[1];
  const std::int64_t width = parts.shape()[2];
  const std::int64_t samples = targets.shape()[0];
  const std::int64_t tokens = targets.shape()[1];
  require(width >= kCrossEntropyParts && samples * tokens == rows,
          "a preference loss of {} samples of {} tokens in {} rows of {} parts", samples, tokens,
          rows, width);
  require_count(targets, DType::kInt64, rows, "a preference loss's targets");
  require_count(document_starts, DType::kUint32, rows, "a preference loss's documents");
  require_count(references, DType::kFloat64, samples, "a preference loss's references");
  require_count(log_sums, parts.dtype(), rows, "a preference loss's log_sums");
  require_count(row_scales, parts.dtype(), rows, "a preference loss's row_scales");
  require_count(pairs, DType::kFloat64, samples * kPairElements, "a preference loss's pairs");
  require_count(sums, DType::kInt64, kLossElements, "a preference loss's sums");
  require(valid_samples >= 0 && valid_samples <= samples, "{} valid samples of {}", valid_samples,
          samples);
  if (observed.handled_by<cuda::preference_loss>(parts, log_sums, targets, document_starts,
                                                 references, beta, vocabulary, valid_samples,
                                                 row_scales, pairs, sums)) {
    return;
  }
  const std::int64_t* const target = targets.host<std::int64_t>().data();
  const std::uint32_t* const start = document_starts.host<std::uint32_t>().data();
  const double* const reference = references.host<double>().data();
  double* const pair = pairs.host<double>().data();
  with_floating(parts.dtype(), [&]<typename T>(T) {
    const T* const from = parts.host<T>().data();
    const T* const log_sum = log_sums.host<T>().data();
    T* const row_scale = row_scales.host<T>().data();
    parallel_for(context, samples, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t sample = begin; sample < end; ++sample) {
        double difference = 0.0;
        for (std::int64_t row = sample * tokens; row < (sample + 1) * tokens; ++row) {
          const auto part = [=](std::int64_t shard, std::int64_t value) {
            return static_cast<double>(from[(shard * rows + row) * width + value]);
          };
          if (is_target(target[row], vocabulary)) {
            difference +=
                signed_likelihood(shards, part, static_cast<double>(log_sum[row]), start[row] > 0);
          }
        }
        const double margin = beta * (difference - reference[sample]);
        pair[sample * kPairElements] = difference;
        pair[sample * kPairElements + 1] = margin;
        const double weight = sample < valid_samples ? beta * preference_weight(margin) : 0.0;
        for (std::int64_t row = sample * tokens; row < (sample + 1) * tokens; ++row) {
          const double own = is_target(target[row], vocabulary) ? weight : 0.0;
          row_scale[row] = static_cast<T>(start[row] > 0 ? -own : own);
        }
      }
    });
  });
  LossSums result;
  add_pairs(valid_samples, pair, result);
  const std::span<std::int64_t> to = sums.host<std::int64_t>();
  to[0] = std::bit_cast<std::int64_t>(result.loss);
  to[1] = result.correct;
  to[4] = result.counted;
}

}  // namespace strata::ops
