#include "strata/ops/split_cross_entropy.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "cuda/rows.hpp"
#include "loss/cuda_loss.hpp"

namespace strata::ops::cuda {
namespace {

/// The logits of a shard's ids, and the targets of all rows.
template <typename T>
struct ShardLogits {
  std::int64_t first_id;
  std::int64_t ids;
  std::int64_t columns;
  const T* logits;
  const std::int64_t* targets;

  __device__ const T* of_row(std::int64_t row) const { return logits + row * columns; }
  /// Out of range where another shard has the row's target.
  __device__ std::int64_t target(std::int64_t row) const { return targets[row] - first_id; }
};

template <typename T>
struct PartsOfRow {
  ShardLogits<T> shard;
  std::int64_t width;
  Compute<T>* parts;

  __device__ void operator()(const auto& threads, std::int64_t row) const {
    using C = Compute<T>;
    const T* const x = shard.of_row(row);
    const std::int64_t target = shard.target(row);
    const RowPeak<C> peak = peak_of(threads, x, shard.ids);
    double sum = 0.0;
    if (width == kSmoothedParts) {
      threads.for_each(shard.ids,
                       [&](std::int64_t i) { sum += static_cast<double>(value_of(x[i])); });
      sum = threads.sum(sum);
    }
    if (threads.lane == 0) {
      const bool has_target = is_target(target, shard.ids);
      C* const to = parts + row * width;
      to[kLargest] = peak.largest;
      to[kSum] = static_cast<C>(peak.sum);
      to[kTarget] = has_target ? value_of(x[target]) : C{0};
      to[kIsFirst] = has_target && peak.first == target ? C{1} : C{0};
      if (width == kSmoothedParts) {
        to[kLogits] = static_cast<C>(sum);
      }
    }
  }
};

/// One thread for each row. `totals` has `rows` elements for each shard.
template <typename C>
__global__ void combine_kernel(std::int64_t shards, std::int64_t rows, std::int64_t step_count,
                               const ReductionStep* steps, std::int64_t width, const C* parts,
                               const std::int64_t* targets, std::int64_t vocabulary,
                               LossTerms terms, double* totals, C* log_sums, RowLoss* losses) {
  const std::int64_t row = thread_number();
  if (row >= rows) {
    return;
  }
  const auto part = [=](std::int64_t shard, std::int64_t value) {
    return static_cast<double>(parts[(shard * rows + row) * width + value]);
  };
  const auto total = [=](std::int64_t shard) -> double& { return totals[shard * rows + row]; };
  const CombinedRow result = combine_row(shards, steps, step_count, part, total, terms, vocabulary);
  log_sums[row] = static_cast<C>(result.log_sum);
  losses[row] = is_target(targets[row], vocabulary) ? result.loss : RowLoss{};
}

template <typename T>
struct GradientOfRow {
  ShardLogits<T> shard;
  const Compute<T>* log_sums;
  std::int64_t valid_rows;
  Compute<T> scale;
  GradientTerms<Compute<T>> terms;
  const Compute<T>* row_scales;  // or null
  T* dlogits;

  __device__ void operator()(const auto& threads, std::int64_t row) const {
    using C = Compute<T>;
    const std::int64_t target = shard.target(row);
    const C log_sum = log_sums[row];
    const C factor = row_scales == nullptr ? scale : scale * row_scales[row];
    const GradientTerms<C> own = terms;
    const C power_factor = own.factor(log_sum);
    const bool counts = row < valid_rows && shard.targets[row] != kUncounted;
    const auto ids = static_cast<int>(counts ? shard.ids : 0);
    map_row(threads, shard.of_row(row), dlogits + row * shard.columns, shard.columns,
            [=](int i, C logit) {
              const C power = power_factor * exponential(logit - log_sum);
              const C term = factor * (power - (i == target ? own.target : own.others));
              return i < ids ? term : C{0};
            });
  }
};

}  // namespace

void cross_entropy_parts(Context& context, const ConstTensorView& logits,
                         const ConstTensorView& targets, std::int64_t first_id, std::int64_t ids,
                         const TensorView& parts) {
  const Rows shape = rows_of(logits.shape());
  with_device_type(logits.dtype(), [&]<typename T>(T) {
    for_each_row(context, "cross_entropy_parts", shape.rows, shape.columns,
                 PartsOfRow<T>{{first_id, ids, shape.columns, logits.device<T>(),
                                targets.device<std::int64_t>()},
                               parts.shape().back(),
                               parts.device<Compute<T>>()});
  });
}

void combine_cross_entropy(Context& context, std::span<const ReductionStep> steps,
                           const ConstTensorView& parts, const ConstTensorView& targets,
                           std::int64_t vocabulary, std::int64_t valid_rows,
                           const TensorView& log_sums, const TensorView& sums,
                           const LossTerms& terms, const TensorView& samples) {
  const std::int64_t shards = parts.shape()[0];
  const std::int64_t rows = parts.shape()[1];
  // Both have the alignment of a double.
  const auto of_rows = rows * static_cast<std::int64_t>(sizeof(RowLoss));
  const auto of_shards = shards * rows * static_cast<std::int64_t>(sizeof(double));
  std::byte* const memory = scratch_of<std::byte>(context, of_rows + of_shards);
  auto* const losses = reinterpret_cast<RowLoss*>(memory);
  auto* const totals = reinterpret_cast<double*>(memory + of_rows);
  const std::int64_t* const target = targets.device<std::int64_t>();
  const ReductionStep* const additions = additions_of(context, steps);
  with_floating(parts.dtype(), [&]<typename C>(C) {
    launch(context, "combine_cross_entropy", grid_of(rows), combine_kernel<C>, shards, rows,
           static_cast<std::int64_t>(steps.size()), additions, parts.shape().back(),
           parts.device<C>(), target, vocabulary, terms, totals, log_sums.device<C>(), losses);
  });
  write_sums(context, valid_rows, losses, target, vocabulary, sums);
  write_samples(context, valid_rows, losses, target, vocabulary, rows, samples);
}

void cross_entropy_gradient(Context& context, const ConstTensorView& logits,
                            const ConstTensorView& targets, std::int64_t first_id, std::int64_t ids,
                            const ConstTensorView& log_sums, std::int64_t valid_rows,
                            double gradient_scale, const TensorView& dlogits,
                            const LossTerms& terms, std::int64_t vocabulary,
                            const ConstTensorView& row_scales) {
  const Rows shape = rows_of(logits.shape());
  with_device_type(logits.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    for_each_row(context, "cross_entropy_gradient", shape.rows, shape.columns,
                 GradientOfRow<T>{{first_id, ids, shape.columns, logits.device<T>(),
                                   targets.device<std::int64_t>()},
                                  log_sums.device<C>(),
                                  valid_rows,
                                  static_cast<C>(gradient_scale),
                                  GradientTerms<C>(terms, vocabulary),
                                  row_scales.empty() ? nullptr : row_scales.device<C>(),
                                  dlogits.device<T>()});
  });
}

}  // namespace strata::ops::cuda
