#include "strata/optim/gradient_norm.hpp"

#include <algorithm>

#include "strata/ops/reduce.hpp"

namespace strata::optim {
namespace {

constexpr std::int64_t kBlock = nn::ParameterLayout::kBlock;

}  // namespace

GradientNorm::GradientNorm(const nn::ParameterLayout& layout, const BucketPlan& plan,
                           std::int64_t data_ranks)
    : layout_(layout), plan_(plan) {
  for (std::int64_t r = 0; r < data_ranks; ++r) {
    partial_count_ = std::max(partial_count_, plan.owned_elements(r) / kBlock);
  }
}

void GradientNorm::partials(ops::Context& context, const ConstTensorView& gradients,
                            std::int64_t data_rank, std::span<double> out) const {
  std::size_t done = 0;
  for (const Bucket& bucket : plan_.buckets()) {
    if (bucket.use == Bucket::Use::kBorrowed) {
      continue;
    }
    const grid::Range& slice = bucket.slices[static_cast<std::size_t>(data_rank)];
    const auto blocks = static_cast<std::size_t>(slice.count() / kBlock);
    ops::sum_of_squares_blocks(
        context, gradients.flat_slice(bucket.elements.begin + slice.begin, slice.count()), kBlock,
        out.subspan(done, blocks));
    done += blocks;
  }
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
