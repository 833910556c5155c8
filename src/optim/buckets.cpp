#include "strata/optim/buckets.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "strata/core/error.hpp"

namespace strata::optim {

BucketPlan::BucketPlan(const nn::ParameterLayout& layout, std::int64_t data_ranks,
                       std::int64_t bucket_elements) {
  constexpr std::int64_t kBlock = nn::ParameterLayout::kBlock;
  require(bucket_elements >= kBlock, "buckets of {} elements", bucket_elements);
  const std::int64_t whole_blocks = bucket_elements / kBlock * kBlock;
  for (std::int64_t end = layout.elements; end > 0;) {
    Bucket bucket{.elements = {std::max<std::int64_t>(0, end - whole_blocks), end}};
    const auto after = std::upper_bound(
        layout.parameters.begin(), layout.parameters.end(), bucket.elements.begin,
        [](std::int64_t begin, const nn::PlacedParameter& p) { return begin < p.offset; });
    bucket.ready_layer = std::prev(after)->spec.layer;
    const std::int64_t blocks = bucket.elements.count() / kBlock;
    for (std::int64_t r = 0; r < data_ranks; ++r) {
      const grid::Range part = grid::even_part(blocks, data_ranks, r);
      bucket.slices.push_back({part.begin * kBlock, part.end * kBlock});
    }
    end = bucket.elements.begin;
    buckets_.push_back(std::move(bucket));
  }
}

std::int64_t BucketPlan::owned_elements(std::int64_t rank) const {
  std::int64_t total = 0;
  for (const Bucket& bucket : buckets_) {
    total += bucket.slices[static_cast<std::size_t>(rank)].count();
  }
  return total;
}

std::int64_t BucketPlan::largest_slice() const {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets_) {
    for (const grid::Range& slice : bucket.slices) {
      largest = std::max(largest, slice.count());
    }
  }
  return largest;
}

std::string BucketPlan::text() const {
  std::string text;
  for (const Bucket& bucket : buckets_) {
    text +=
        fmt::format("[{},{})@{}", bucket.elements.begin, bucket.elements.end, bucket.ready_layer);
    for (const grid::Range& slice : bucket.slices) {
      text += fmt::format(" {}-{}", slice.begin, slice.end);
    }
    text += ";";
  }
  return text;
}

std::vector<OwnedPiece> owned_pieces(const nn::ParameterLayout& layout, const BucketPlan& plan,
                                     std::int64_t rank) {
  std::vector<OwnedPiece> pieces;
  std::int64_t owned = 0;
  for (std::size_t b = 0; b < plan.buckets().size(); ++b) {
    const Bucket& bucket = plan.buckets()[b];
    const grid::Range slice = bucket.slices[static_cast<std::size_t>(rank)];
    const std::int64_t begin = bucket.elements.begin + slice.begin;
    const std::int64_t end = bucket.elements.begin + slice.end;
    for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
      const nn::PlacedParameter& placed = layout.parameters[p];
      const std::int64_t from = std::max(begin, placed.offset);
      const std::int64_t to = std::min(end, placed.offset + placed.spec.shape.count());
      if (from < to) {
        pieces.push_back({.bucket = b,
                          .parameter = p,
                          .range = {from - placed.offset, to - placed.offset},
                          .arena_offset = from,
                          .owned_offset = owned + from - begin});
      }
    }
    owned += slice.count();
  }
  return pieces;
}

}  // namespace strata::optim
