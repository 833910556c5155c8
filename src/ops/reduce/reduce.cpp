#include "strata/ops/reduce.hpp"

#include <algorithm>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/simd_reduction.hpp"

namespace strata::ops {
namespace {

/// Bytes of one chunk of all parts, so that they stay in the L2 cache from the first addition to
/// the last.
constexpr std::int64_t kFoldBytes = 256 * 1024;

OperationWork fold_work(std::span<const TensorView> parts, std::span<const ReductionStep> steps) {
  const ConstTensorView& part = parts.front();
  // Each addition reads two parts and writes one.
  return {.name = "fold",
          .dtype = part.dtype(),
          .extents = {std::ssize(steps), part.count()},
          .bytes = 3.0 * static_cast<double>(steps.size()) * Observed::bytes_of(part)};
}

template <typename T>
void add_chunk(T* into, const T* from, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    into[i] += from[i];
  }
}

template <typename T>
double block_sum_of_squares(const T* x, std::int64_t count) {
  return simd_sum<double>(count, [=](std::int64_t i) {
    const double value = static_cast<double>(x[i]);
    return value * value;
  });
}

}  // namespace

void fold(Context& context, std::span<const TensorView> parts,
          std::span<const ReductionStep> steps) {
  if (parts.empty() || steps.empty()) {
    return;
  }
  const Observed observed(context, [&] { return fold_work(parts, steps); });
  for (const TensorView& part : parts) {
    require_count(part, parts[0].dtype(), parts[0].count(), "a fold's part");
  }
  const auto part_count = static_cast<std::int64_t>(parts.size());
  require_steps(steps, part_count, "a fold");
  if (observed.handled_by<cuda::fold>(parts, steps)) {
    return;
  }
  with_floating(parts[0].dtype(), [&]<typename T>(T) {
    std::vector<T*> elements;
    elements.reserve(parts.size());
    for (const TensorView& part : parts) {
      elements.push_back(part.host<T>().data());
    }
    const std::int64_t chunk = std::clamp<std::int64_t>(
        kFoldBytes / static_cast<std::int64_t>(sizeof(T)) / part_count, 256, kElementGrain);
    parallel_for(context, parts[0].count(), chunk, [&](std::int64_t begin, std::int64_t end) {
      for (const ReductionStep& step : steps) {
        add_chunk<T>(elements[static_cast<std::size_t>(step.into)],
                     elements[static_cast<std::size_t>(step.from)], begin, end);
      }
    });
  });
}

void fold_into(Context& context, std::span<const TensorView> parts,
               std::span<const ReductionStep> steps, const TensorView& out) {
  const Observed observed(context, [&] { return fold_work(parts, steps); });
  for (const TensorView& part : parts) {
    require_count(part, DType::kBfloat16, out.count(), "a fold's part");
  }
  const auto part_count = static_cast<std::int64_t>(parts.size());
  require_steps(steps, part_count, "a fold");
  require(part_count >= 2 && std::ssize(steps) == part_count - 1, "a fold of {} parts in {} steps",
          part_count, steps.size());
  if (observed.handled_by<cuda::fold_into>(parts, steps, out)) {
    return;
  }
  float* const sums = out.host<float>().data();
  const std::int64_t chunk =
      std::max<std::int64_t>(kFoldBytes / std::ssize(parts) / std::int64_t{sizeof(float)}, 256);
  parallel_for(context, out.count(), chunk, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> elements(static_cast<std::size_t>(part_count * (end - begin)));
    const auto chunk_of = [&](std::int64_t part) { return elements.data() + part * (end - begin); };
    for (std::int64_t part = 0; part < part_count; ++part) {
      const std::span<const BFloat16> from = parts[static_cast<std::size_t>(part)].host<BFloat16>();
      std::transform(from.begin() + begin, from.begin() + end, chunk_of(part),
                     [](BFloat16 value) { return static_cast<float>(value); });
    }
    for (const ReductionStep& step : steps) {
      add_chunk<float>(chunk_of(step.into), chunk_of(step.from), 0, end - begin);
    }
    std::copy_n(chunk_of(steps.back().into), end - begin, sums + begin);
  });
}

void sum_of_squares_blocks(Context& context, const ConstTensorView& x, std::int64_t block_elements,
                           const TensorView& out) {
  const Observed observed(context, "sum_of_squares_blocks", x, out);
  require(block_elements >= 1, "blocks of {} elements", block_elements);
  const std::int64_t count = x.count();
  const std::int64_t blocks = (count + block_elements - 1) / block_elements;
  require_count(out, DType::kFloat64, blocks, "sums of squares");
  if (observed.handled_by<cuda::sum_of_squares_blocks>(x, block_elements, out)) {
    return;
  }
  with_floating(x.dtype(), [&]<typename T>(T) {
    const T* from = x.host<T>().data();
    double* const to = out.host<double>().data();
    parallel_for_rows(context, blocks, block_elements, [&](std::int64_t block) {
      const std::int64_t first = block * block_elements;
      to[block] = block_sum_of_squares(from + first, std::min(block_elements, count - first));
    });
  });
}

}  // namespace strata::ops
