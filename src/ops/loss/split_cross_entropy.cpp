#include "strata/ops/split_cross_entropy.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "loss/loss_rows.hpp"
#include "observed.hpp"
#include "simd/math.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

template <typename Stored>
void row_parts(const Stored* logits, std::int64_t ids, std::int64_t target,
               std::span<Compute<Stored>> parts) {
  using T = Compute<Stored>;
  const T largest = simd_max<T>(ids, [=](std::int64_t i) { return static_cast<T>(logits[i]); });
  parts[kLargest] = largest;
  parts[kSum] = static_cast<T>(simd_sum<T>(
      ids, [=](std::int64_t i) { return fast_exp(static_cast<T>(logits[i]) - largest); }));
  const bool has_target = is_target(target, ids);
  parts[kTarget] = has_target ? static_cast<T>(logits[target]) : T{0};
  const bool reaches = has_target && parts[kTarget] == largest && !std::isnan(parts[kSum]);
  parts[kIsFirst] =
      reaches && std::none_of(logits, logits + target,
                              [&](const Stored& logit) { return static_cast<T>(logit) == largest; })
          ? T{1}
          : T{0};
  if (std::ssize(parts) == kSmoothedParts) {
    parts[kLogits] =
        static_cast<T>(simd_sum<T>(ids, [=](std::int64_t i) { return static_cast<T>(logits[i]); }));
  }
}

/// dlogits may be the logits.
template <typename Stored>
void row_gradient(const Stored* logits, std::int64_t ids, std::int64_t target,
                  Compute<Stored> log_sum, Compute<Stored> scale,
                  const GradientTerms<Compute<Stored>>& terms, Stored* dlogits) {
  using T = Compute<Stored>;
  const bool has_target = is_target(target, ids);
  const T at_target = has_target ? static_cast<T>(logits[target]) : T{0};
  const T factor = terms.factor(log_sum);
  store_terms(dlogits, 0, ids, [=](std::int64_t i) {
    return scale * (factor * fast_exp(static_cast<T>(logits[i]) - log_sum) - terms.others);
  });
  if (has_target) {
    dlogits[target] =
        to_storage<Stored>(scale * (factor * fast_exp(at_target - log_sum) - terms.target));
  }
}

void require_ids(std::int64_t first_id, std::int64_t ids, std::int64_t columns) {
  require(ids >= 1 && ids <= columns && first_id >= 0, "logits of the ids [{}, {}) in {} columns",
          first_id, first_id + ids, columns);
}

/// The values of a shard and row in `parts`.
std::int64_t width_of(const ConstTensorView& parts) {
  const std::int64_t width = parts.shape().rank() == 0 ? 0 : parts.shape().back();
  require(width == kCrossEntropyParts || width == kSmoothedParts, "cross-entropy's parts of {}",
          parts.shape().text());
  return width;
}

}  // namespace

void cross_entropy_parts(Context& context, const ConstTensorView& logits,
                         const ConstTensorView& targets, std::int64_t first_id, std::int64_t ids,
                         const TensorView& parts) {
  const Observed observed(context, "cross_entropy_parts", logits, targets, parts);
  const auto [rows, columns] = rows_of(logits.shape());
  require_ids(first_id, ids, columns);
  require_count(targets, DType::kInt64, rows, "cross-entropy's targets");
  const std::int64_t width = width_of(parts);
  require_count(parts, compute_dtype(logits.dtype()), rows * width, "cross-entropy's parts");
  if (observed.handled_by<cuda::cross_entropy_parts>(logits, targets, first_id, ids, parts)) {
    return;
  }
  const auto target = targets.host<std::int64_t>();
  with_stored(logits.dtype(), [&, rows = rows, columns = columns]<typename Stored>(Stored) {
    const Stored* from = logits.host<Stored>().data();
    Compute<Stored>* to = parts.host<Compute<Stored>>().data();
    parallel_for_rows(context, rows, ids, [&](std::int64_t row) {
      row_parts(from + row * columns, ids, target[static_cast<std::size_t>(row)] - first_id,
                std::span(to + row * width, static_cast<std::size_t>(width)));
    });
  });
}

void combine_cross_entropy(Context& context, std::span<const ReductionStep> steps,
                           const ConstTensorView& parts, const ConstTensorView& targets,
                           std::int64_t vocabulary, std::int64_t valid_rows,
                           const TensorView& log_sums, const TensorView& sums,
                           const LossTerms& terms, const TensorView& samples) {
  const Observed observed(context, "combine_cross_entropy", parts, targets, log_sums, sums);
  require(parts.shape().rank() == 3 && parts.shape()[0] >= 1, "cross-entropy's parts of {}",
          parts.shape().text());
  const std::int64_t shards = parts.shape()[0];
  const std::int64_t rows = parts.shape()[1];
  const std::int64_t width = width_of(parts);
  require(terms.label_smoothing == 0.0 || width == kSmoothedParts,
          "label smoothing without the sums of logits");
  require_count(targets, DType::kInt64, rows, "cross-entropy's targets");
  require_count(log_sums, parts.dtype(), rows, "cross-entropy's log_sums");
  require_count(sums, DType::kInt64, kLossElements, "cross-entropy's sums");
  require_samples(samples, rows);
  require(valid_rows >= 0 && valid_rows <= rows, "{} valid rows of {}", valid_rows, rows);
  require_steps(steps, shards, "cross-entropy");
  if (observed.handled_by<cuda::combine_cross_entropy>(
          steps, parts, targets, vocabulary, valid_rows, log_sums, sums, terms, samples)) {
    return;
  }
  const auto target = targets.host<std::int64_t>().first(static_cast<std::size_t>(valid_rows));
  std::vector<RowLoss> row_losses(target.size());
  with_floating(parts.dtype(), [&]<typename T>(T) {
    const T* from = parts.host<T>().data();
    T* to = log_sums.host<T>().data();
    // An exponential of a shard takes about as long as 32 products.
    parallel_for(context, rows, row_grain(32 * shards), [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> totals(static_cast<std::size_t>(shards));
      for (std::int64_t row = begin; row < end; ++row) {
        const auto part = [=](std::int64_t shard, std::int64_t value) {
          return static_cast<double>(from[(shard * rows + row) * width + value]);
        };
        const auto total = [&](std::int64_t shard) -> double& {
          return totals[static_cast<std::size_t>(shard)];
        };
        const CombinedRow result =
            combine_row(shards, steps.data(), static_cast<std::int64_t>(steps.size()), part, total,
                        terms, vocabulary);
        to[row] = static_cast<T>(result.log_sum);
        const auto index = static_cast<std::size_t>(row);
        if (row < valid_rows && is_target(target[index], vocabulary)) {
          row_losses[index] = result.loss;
        }
      }
    });
  });
  write_sums(row_losses, target, vocabulary, sums);
  write_samples(row_losses, target, vocabulary, rows, samples);
}

void cross_entropy_gradient(Context& context, const ConstTensorView& logits,
                            const ConstTensorView& targets, std::int64_t first_id, std::int64_t ids,
                            const ConstTensorView& log_sums, std::int64_t valid_rows,
                            double gradient_scale, const TensorView& dlogits,
                            const LossTerms& terms, std::int64_t vocabulary,
                            const ConstTensorView& row_scales) {
  const Observed observed(context, "cross_entropy_gradient", logits, targets, log_sums, dlogits);
  const auto [rows, columns] = rows_of(logits.shape());
  require_ids(first_id, ids, columns);
  require_count(targets, DType::kInt64, rows, "cross-entropy's targets");
  require_count(log_sums, compute_dtype(logits.dtype()), rows, "cross-entropy's log_sums");
  require_like(dlogits, logits.dtype(), logits.shape(), "cross-entropy's dlogits");
  require(terms.label_smoothing == 0.0 || first_id + ids <= vocabulary,
          "label smoothing over {} classes, the shard ends at {}", vocabulary, first_id + ids);
  require(valid_rows >= 0 && valid_rows <= rows, "{} valid rows of {}", valid_rows, rows);
  if (!row_scales.empty()) {
    require_count(row_scales, log_sums.dtype(), rows, "cross-entropy's row_scales");
  }
  if (observed.handled_by<cuda::cross_entropy_gradient>(logits, targets, first_id, ids, log_sums,
                                                        valid_rows, gradient_scale, dlogits, terms,
                                                        vocabulary, row_scales)) {
    return;
  }
  const auto target = targets.host<std::int64_t>();
  with_stored(logits.dtype(), [&, rows = rows, columns = columns]<typename Stored>(Stored) {
    using T = Compute<Stored>;
    const Stored* from = logits.host<Stored>().data();
    const T* log_sum = log_sums.host<T>().data();
    Stored* to = dlogits.host<Stored>().data();
    const T* const row_scale = host_or_null<T>(row_scales);
    const GradientTerms<T> row_terms(terms, vocabulary);
    parallel_for_rows(context, rows, columns, [&](std::int64_t row) {
      Stored* const to_row = to + row * columns;
      const bool counts = row < valid_rows && target[static_cast<std::size_t>(row)] != kUncounted;
      if (counts) {
        const T scale =
            static_cast<T>(gradient_scale) * (row_scale == nullptr ? T{1} : row_scale[row]);
        row_gradient(from + row * columns, ids, target[static_cast<std::size_t>(row)] - first_id,
                     log_sum[row], scale, row_terms, to_row);
      }
      std::fill(to_row + (counts ? ids : 0), to_row + columns, Stored{});
    });
  });
}

}  // namespace strata::ops
