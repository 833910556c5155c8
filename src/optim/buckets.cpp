#include "strata/optim/buckets.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "strata/core/error.hpp"

namespace strata::optim {

namespace {

/// A part of the arena whose boundaries no bucket crosses.
struct Region {
  grid::Range elements;
  Bucket::Use use = Bucket::Use::kOwn;
};

/// The regions, divided where a chunk begins.
std::vector<Region> divided(std::span<const Region> regions, std::span<const std::int64_t> begins) {
  std::vector<Region> parts;
  for (const Region& region : regions) {
    std::int64_t end = region.elements.end;
    for (auto begin = begins.rbegin(); begin != begins.rend(); ++begin) {
      if (*begin > region.elements.begin && *begin < end) {
        parts.push_back({{*begin, end}, region.use});
        end = *begin;
      }
    }
    parts.push_back({{region.elements.begin, end}, region.use});
  }
  return parts;
}

/// The arena's regions, from its end.
std::vector<Region> regions_of(const nn::ParameterLayout& layout) {
  std::vector<Region> marked;
  for (const Region& region : {Region{layout.shared, Bucket::Use::kShared},
                               Region{layout.borrowed, Bucket::Use::kBorrowed}}) {
    if (region.elements.count() > 0) {
      marked.push_back(region);
    }
  }
  std::sort(marked.begin(), marked.end(),
            [](const Region& a, const Region& b) { return a.elements.begin > b.elements.begin; });
  std::vector<Region> regions;
  std::int64_t end = layout.elements;
  for (const Region& region : marked) {
    regions.push_back({{region.elements.end, end}, Bucket::Use::kOwn});
    regions.push_back(region);
    end = region.elements.begin;
  }
  regions.push_back({{0, end}, Bucket::Use::kOwn});
  return divided(regions, layout.chunk_begins);
}

/// The parameter at this offset of the arena.
auto parameter_at(const nn::ParameterLayout& layout, std::int64_t element) {
  const auto after =
      std::upper_bound(layout.parameters.begin(), layout.parameters.end(), element,
                       [](std::int64_t at, const nn::PlacedParameter& p) { return at < p.offset; });
  return std::prev(after);
}

std::int64_t layer_at(const nn::ParameterLayout& layout, std::int64_t element) {
  return parameter_at(layout, element)->spec.layer;
}

/// The offset at which the layer of this element begins.
std::int64_t layer_begin(const nn::ParameterLayout& layout, std::int64_t element) {
  auto first = parameter_at(layout, element);
  while (first != layout.parameters.begin() && std::prev(first)->spec.layer == first->spec.layer) {
    --first;
  }
  return first->offset;
}

/// The slice of a bucket that each data rank reduces: whole blocks.
std::vector<grid::Range> slices_of(const grid::Range& elements, std::int64_t data_ranks) {
  std::vector<grid::Range> slices;
  for (std::int64_t r = 0; r < data_ranks; ++r) {
    const grid::Range part = grid::even_part(elements.count() / kBlock, data_ranks, r);
    slices.push_back({part.begin * kBlock, part.end * kBlock});
  }
  return slices;
}

/// Elements of a piece that take no place in optimizer states. Whole blocks, so that all others
/// stay aligned.
std::int64_t stateless_elements(const nn::ParameterLayout& layout, const OwnedPiece& piece) {
  const bool frozen = layout.parameters[piece.parameter].spec.rule == nn::ParameterRule::kFrozen;
  return frozen ? piece.range.count() / kBlock * kBlock : 0;
}

}  // namespace

BucketPlan::BucketPlan(const nn::ParameterLayout& layout, std::int64_t data_ranks,
                       std::int64_t least_elements, std::int64_t most_elements) {
  require(kBlock <= least_elements && least_elements <= most_elements,
          "buckets of {} to {} elements", least_elements, most_elements);
  const std::int64_t least = least_elements / kBlock * kBlock;
  const std::int64_t most = most_elements / kBlock * kBlock;
  for (const Region& region : regions_of(layout)) {
    for (std::int64_t end = region.elements.end; end > region.elements.begin;) {
      const std::int64_t layer = layer_begin(layout, std::max(region.elements.begin, end - least));
      const grid::Range elements{std::max({region.elements.begin, layer, end - most}), end};
      buckets_.push_back({.use = region.use,
                          .elements = elements,
                          .ready_layer = layer_at(layout, elements.begin),
                          .slices = slices_of(elements, data_ranks)});
      end = elements.begin;
    }
  }
}

std::vector<Bucket> BucketPlan::buckets_for(Bucket::Use use) const {
  std::vector<Bucket> buckets;
  std::copy_if(buckets_.begin(), buckets_.end(), std::back_inserter(buckets),
               [use](const Bucket& bucket) { return bucket.use == use; });
  return buckets;
}

std::int64_t BucketPlan::largest_slice() const {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets_) {
    largest = std::max(largest, bucket.slices.front().count());  // earlier ranks get what is left
  }
  return largest;
}

std::string BucketPlan::text() const {
  constexpr std::array<std::string_view, 3> kSigns{"", " shared", " borrowed"};
  std::string text;
  for (const Bucket& bucket : buckets_) {
    text += fmt::format("[{},{})@{}{}", bucket.elements.begin, bucket.elements.end,
                        bucket.ready_layer, kSigns[static_cast<std::size_t>(bucket.use)]);
    for (const grid::Range& slice : bucket.slices) {
      text += fmt::format(" {}-{}", slice.begin, slice.end);
    }
    text += ";";
  }
  return text;
}

std::int64_t Ownership::elements() const {
  std::int64_t total = 0;
  for (const Bucket& bucket : buckets.buckets()) {
    if (bucket.use != Bucket::Use::kBorrowed) {
      total += bucket.slices[static_cast<std::size_t>(rank)].count();
    }
  }
  return total;
}

std::int64_t Ownership::state_elements() const {
  std::int64_t total = elements();
  for (const OwnedPiece& piece : pieces()) {
    total -= stateless_elements(layout, piece);
  }
  return total;
}

std::vector<OwnedPiece> Ownership::pieces() const {
  std::vector<OwnedPiece> pieces;
  std::int64_t owned = 0;
  std::int64_t stateless = 0;
  for (std::size_t b = 0; b < buckets.buckets().size(); ++b) {
    const Bucket& bucket = buckets.buckets()[b];
    if (bucket.use == Bucket::Use::kBorrowed) {
      continue;
    }
    const grid::Range slice = bucket.slices[static_cast<std::size_t>(rank)];
    const std::int64_t begin = bucket.elements.begin + slice.begin;
    const std::int64_t end = bucket.elements.begin + slice.end;
    if (begin == end) {
      continue;
    }
    const auto first =
        static_cast<std::size_t>(parameter_at(layout, begin) - layout.parameters.begin());
    for (std::size_t p = first; p < layout.parameters.size(); ++p) {
      const nn::PlacedParameter& placed = layout.parameters[p];
      if (placed.offset >= end) {
        break;
      }
      const std::int64_t from = std::max(begin, placed.offset);
      const std::int64_t to = std::min(end, placed.offset + placed.shape.count());
      if (from < to) {
        pieces.push_back({.bucket = b,
                          .parameter = p,
                          .range = {from - placed.offset, to - placed.offset},
                          .arena_offset = from,
                          .owned_offset = owned + from - begin,
                          .state_offset = owned + from - begin - stateless});
        stateless += stateless_elements(layout, pieces.back());
      }
    }
    owned += slice.count();
  }
  return pieces;
}

}  // namespace strata::optim
