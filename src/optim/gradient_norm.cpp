#include "strata/optim/gradient_norm.hpp"

#include <algorithm>
#include <cmath>

#include "strata/ops/reduce.hpp"

namespace strata::optim {
namespace {

/// The number of blocks of the data rank that owns the most: the first of each bucket's slices is
/// the largest.
std::int64_t most_blocks(const BucketPlan& plan) {
  return plan.owned_elements(0) / kBlock;
}

}  // namespace

GradientNorm::GradientNorm(ops::Context& context, const nn::ParameterLayout& layout,
                           const BucketPlan& plan, std::int64_t data_rank)
    : context_(context),
      layout_(layout),
      plan_(plan),
      data_rank_(data_rank),
      memory_(context.device(), memory(plan).bytes),
      partials_(memory_.view(0, Shape{most_blocks(plan)}, DType::kFloat64)),
      on_host_(partials_, context.device()) {}

nn::MemoryItem GradientNorm::memory(const BucketPlan& plan) {
  return {"gradient norm", most_blocks(plan) * size_bytes(DType::kFloat64)};
}

void GradientNorm::begin(const ConstTensorView& gradients) {
  std::int64_t done = 0;
  for (const Bucket& bucket : plan_.buckets()) {
    if (bucket.use == Bucket::Use::kBorrowed) {
      continue;
    }
    const grid::Range& slice = bucket.slices[static_cast<std::size_t>(data_rank_)];
    const std::int64_t blocks = slice.count() / kBlock;
    ops::sum_of_squares_blocks(
        context_, gradients.flat_slice(bucket.elements.begin + slice.begin, slice.count()), kBlock,
        partials_.flat_slice(done, blocks));
    done += blocks;
  }
  on_host_.update(context_.stream());
}

bool GradientNorm::is_finite(const ConstTensorView& tensor) {
  const std::int64_t most = partials_.count() * kBlock;
  for (std::int64_t first = 0; first < tensor.count(); first += most) {
    const std::int64_t count = std::min(most, tensor.count() - first);
    const std::int64_t blocks = (count + kBlock - 1) / kBlock;
    ops::sum_of_squares_blocks(context_, tensor.flat_slice(first, count), kBlock,
                               partials_.flat_slice(0, blocks));
    on_host_.update(context_.stream());
    context_.stream().synchronize();
    const std::span<const double> sums = partials().first(static_cast<std::size_t>(blocks));
    if (!std::ranges::all_of(sums, [](double sum) { return std::isfinite(sum); })) {
      return false;
    }
  }
  return true;
}

std::span<const double> GradientNorm::partials() const {
  return on_host_.view().host<double>();
}

std::vector<double> GradientNorm::squares(std::span<const std::span<const double>> gathered) const {
  // Borrowed blocks stay zero.
  std::vector<double> blocks(static_cast<std::size_t>(layout_.elements / kBlock));
  std::vector<std::size_t> taken(gathered.size(), 0);
  for (const Bucket& bucket : plan_.buckets()) {
    for (std::size_t r = 0; r < gathered.size() && bucket.use != Bucket::Use::kBorrowed; ++r) {
      const grid::Range& slice = bucket.slices[r];
      const std::int64_t first = (bucket.elements.begin + slice.begin) / kBlock;
      for (std::int64_t i = 0; i < slice.count() / kBlock; ++i) {
        blocks[static_cast<std::size_t>(first + i)] = gathered[r][taken[r]++];
      }
    }
  }
  std::vector<double> squares;
  for (const nn::PlacedParameter& placed : layout_.parameters) {
    const std::int64_t first = placed.offset / kBlock;
    const std::int64_t count = (placed.shape.count() + kBlock - 1) / kBlock;
    double sum = 0.0;
    for (std::int64_t i = 0; i < count; ++i) {
      sum += blocks[static_cast<std::size_t>(first + i)];
    }
    squares.push_back(sum);
  }
  return squares;
}

}  // namespace strata::optim
