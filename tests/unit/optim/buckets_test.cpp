#include "strata/optim/buckets.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "layouts.hpp"

namespace strata::optim::test::buckets_test {
namespace {

constexpr std::int64_t kBlock = nn::ParameterLayout::kBlock;

struct Sizes {
  std::vector<std::int64_t> counts;
  std::int64_t ranks;
  std::int64_t bucket;
};

std::vector<Sizes> all_sizes() {
  std::vector<Sizes> all;
  for (const auto& counts :
       {std::vector<std::int64_t>{1}, {1024}, {1025, 3}, kMixed, {100000, 1, 2, 3, 40000}, {}}) {
    for (const std::int64_t ranks : {1, 2, 3, 4, 7, 16}) {
      for (const std::int64_t bucket : {1024, 1500, 2048, 5000, 1 << 20}) {
        all.push_back({counts, ranks, bucket});
      }
    }
  }
  return all;
}

TEST(BucketPlan, CoversEveryElementOnceFromTheEnd) {
  for (const Sizes& sizes : all_sizes()) {
    const nn::ParameterLayout layout = layout_with(sizes.counts);
    const BucketPlan plan(layout, sizes.ranks, sizes.bucket);
    std::int64_t end = layout.elements;
    std::int64_t largest = 0;
    std::vector<std::int64_t> owned(static_cast<std::size_t>(sizes.ranks), 0);
    for (const Bucket& bucket : plan.buckets()) {
      ASSERT_EQ(bucket.elements.end, end);
      ASSERT_GT(bucket.elements.count(), 0);
      ASSERT_LE(bucket.elements.count(), sizes.bucket);
      end = bucket.elements.begin;
      ASSERT_EQ(std::ssize(bucket.slices), sizes.ranks);
      std::int64_t next = 0;
      for (std::size_t r = 0; r < bucket.slices.size(); ++r) {
        const grid::Range& slice = bucket.slices[r];
        ASSERT_EQ(slice.begin, next);
        ASSERT_EQ(slice.begin % kBlock, 0);
        ASSERT_EQ(slice.end % kBlock, 0);
        next = slice.end;
        owned[r] += slice.count();
        largest = std::max(largest, slice.count());
      }
      ASSERT_EQ(next, bucket.elements.count());
    }
    ASSERT_EQ(end, 0);
    EXPECT_EQ(plan.largest_slice(), largest);
    for (std::int64_t r = 0; r < sizes.ranks; ++r) {
      EXPECT_EQ((Ownership{layout, plan, r}.elements()), owned[static_cast<std::size_t>(r)]);
    }
  }
}

TEST(BucketPlan, BucketsAreReadyWithTheLayerOfTheirFirstElement) {
  for (const Sizes& sizes : all_sizes()) {
    const nn::ParameterLayout layout = layout_with(sizes.counts);
    const BucketPlan plan(layout, sizes.ranks, sizes.bucket);
    for (const Bucket& bucket : plan.buckets()) {
      // The earliest layer with an element in it, which backward reaches last.
      std::int64_t earliest = 1000;
      for (const nn::PlacedParameter& placed : layout.parameters) {
        const std::int64_t count = (placed.spec.shape.count() + kBlock - 1) / kBlock * kBlock;
        if (placed.offset < bucket.elements.end && placed.offset + count > bucket.elements.begin) {
          earliest = std::min(earliest, placed.spec.layer);
        }
      }
      ASSERT_EQ(bucket.ready_layer, earliest);
    }
  }
}

/// Buckets and slices counted from the beginning of their region.
std::vector<std::vector<grid::Range>> relative(const std::vector<Bucket>& buckets,
                                               std::int64_t begin) {
  std::vector<std::vector<grid::Range>> all;
  for (const Bucket& bucket : buckets) {
    all.push_back({{bucket.elements.begin - begin, bucket.elements.end - begin}});
    all.back().insert(all.back().end(), bucket.slices.begin(), bucket.slices.end());
  }
  return all;
}

std::int64_t elements_of(const std::vector<Bucket>& buckets) {
  std::int64_t elements = 0;
  for (const Bucket& bucket : buckets) {
    elements += bucket.elements.count();
  }
  return elements;
}

TEST(BucketPlan, CutsTiedParametersAlikeOnBothStages) {
  using Use = Bucket::Use;
  for (const std::int64_t bucket : {1024, 2048, 3000, 1 << 20}) {
    for (const std::int64_t ranks : {1, 2, 3, 4}) {
      for (const nn::Shards& shards :
           {nn::Shards{}, nn::Shards{.count = 4, .own = {0, 2}}, nn::Shards{4, {2, 4}}}) {
        const nn::ParameterLayout whole = nn::layout_of(tied_model(), {0, 4}, shards);
        const nn::ParameterLayout first = nn::layout_of(tied_model(), {0, 2}, shards);
        const nn::ParameterLayout last = nn::layout_of(tied_model(), {2, 4}, shards);
        const BucketPlan one(whole, ranks, bucket);
        const BucketPlan lends(first, ranks, bucket);
        const BucketPlan borrows(last, ranks, bucket);
        const auto expected = relative(one.buckets_for(Use::kShared), whole.shared.begin);
        EXPECT_EQ(elements_of(one.buckets_for(Use::kShared)), whole.shared.count());
        EXPECT_EQ(relative(one.buckets_for(Use::kBorrowed), whole.borrowed.begin), expected);
        EXPECT_EQ(relative(lends.buckets_for(Use::kShared), first.shared.begin), expected);
        EXPECT_EQ(relative(borrows.buckets_for(Use::kBorrowed), last.borrowed.begin), expected);
        EXPECT_TRUE(lends.buckets_for(Use::kBorrowed).empty());
        EXPECT_TRUE(borrows.buckets_for(Use::kShared).empty());
        EXPECT_EQ(elements_of(one.buckets()), whole.elements);
      }
    }
  }
}

TEST(BucketPlan, OfWholeLayersEndsWhereOneBegins) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  struct Case {
    std::int64_t bucket;
    std::vector<std::int64_t> begins;
  };
  // Layers begin at 0, 4096 and 6144; the last one ends at 13312.
  for (const Case& c : {Case{1024, {6144, 4096, 0}}, Case{7168, {6144, 0}}, Case{7169, {6144, 0}},
                        Case{8192, {4096, 0}}, Case{1 << 20, {0}}}) {
    std::vector<std::int64_t> begins;
    const BucketPlan plan(layout, 2, c.bucket, 1 << 20);
    for (const Bucket& bucket : plan.buckets()) {
      begins.push_back(bucket.elements.begin);
      EXPECT_EQ(bucket.ready_layer, bucket.elements.begin / 3072);
    }
    EXPECT_EQ(begins, c.begins) << "buckets of " << c.bucket;
  }
  // A layer of more than the most has several.
  const std::vector<Bucket> parts = BucketPlan(layout, 2, 1024, 4096).buckets();
  ASSERT_EQ(std::ssize(parts), 4);
  EXPECT_EQ(parts.front().elements, (grid::Range{9216, 13312}));
  EXPECT_EQ(parts[1].elements, (grid::Range{6144, 9216}));
  EXPECT_THROW(BucketPlan(layout, 2, 4096, 1024), std::logic_error);
}

TEST(BucketPlan, OwnsAllButWhatIsBorrowed) {
  const nn::ParameterLayout layout = nn::layout_of(tied_model(), {0, 4});
  for (const std::int64_t ranks : {1, 2, 3}) {
    const BucketPlan plan(layout, ranks, 2048);
    std::int64_t owned = 0;
    std::vector<int> seen(static_cast<std::size_t>(layout.elements), 0);
    for (std::int64_t r = 0; r < ranks; ++r) {
      const Ownership of_rank{layout, plan, r};
      owned += of_rank.elements();
      for (const OwnedPiece& piece : of_rank.pieces()) {
        EXPECT_LE(piece.owned_offset + piece.range.count(), of_rank.elements());
        for (std::int64_t i = 0; i < piece.range.count(); ++i) {
          ++seen[static_cast<std::size_t>(piece.arena_offset + i)];
        }
      }
    }
    EXPECT_EQ(owned, layout.elements - layout.borrowed.count());
    for (const nn::PlacedParameter& placed : layout.parameters) {
      const bool is_owned = placed.spec.ownership == nn::Ownership::kOwned;
      for (std::int64_t i = 0; i < placed.shape.count(); ++i) {
        ASSERT_EQ(seen[static_cast<std::size_t>(placed.offset + i)], is_owned ? 1 : 0);
      }
    }
  }
}

TEST(BucketPlan, NoBucketCrossesAChunk) {
  using Chunks = std::vector<grid::Range>;
  for (const Chunks& chunks :
       {Chunks{{0, 2}, {3, 4}}, Chunks{{0, 1}, {1, 2}, {2, 4}}, Chunks{{1, 2}, {2, 3}, {3, 4}}}) {
    const nn::ParameterLayout layout = nn::layout_of(tied_model(), chunks);
    const auto chunk_of = [&](std::int64_t layer) {
      return std::ranges::find_if(chunks, [&](const auto& c) { return layer < c.end; });
    };
    for (const std::int64_t size : {1024, 2048, 5000, 1 << 20}) {
      const BucketPlan plan(layout, 2, size);
      EXPECT_EQ(elements_of(plan.buckets()), layout.elements);
      std::int64_t last = 4;
      for (const Bucket& bucket : plan.buckets()) {
        for (const nn::PlacedParameter& placed : layout.parameters) {
          if (placed.offset < bucket.elements.end &&
              placed.offset + placed.shape.count() > bucket.elements.begin) {
            EXPECT_EQ(chunk_of(placed.spec.layer), chunk_of(bucket.ready_layer));
          }
        }
        EXPECT_LE(bucket.ready_layer, last);
        last = bucket.ready_layer;
      }
    }
  }
}

TEST(BucketPlan, TextDistinguishesPlans) {
  const nn::ParameterLayout layout = layout_with(kMixed);
  const std::string text = BucketPlan(layout, 2, 2048).text();
  EXPECT_EQ(BucketPlan(layout, 2, 2100).text(), text);
  EXPECT_NE(BucketPlan(layout, 3, 2048).text(), text);
  EXPECT_NE(BucketPlan(layout, 2, 4096).text(), text);
  nn::ParameterLayout lending = layout;
  lending.shared = {0, layout.elements};
  EXPECT_NE(BucketPlan(lending, 2, 2048).text(), text);
}

TEST(BucketPlan, RefusesBucketsBelowABlock) {
  EXPECT_THROW(BucketPlan(layout_with({5}), 1, kBlock - 1), std::logic_error);
}

TEST(OwnedPieces, AreEveryElementOfEveryParameterOnce) {
  for (const Sizes& sizes : all_sizes()) {
    const nn::ParameterLayout layout = layout_with(sizes.counts);
    const BucketPlan plan(layout, sizes.ranks, sizes.bucket);
    std::vector<int> seen(static_cast<std::size_t>(layout.elements), 0);
    for (std::int64_t r = 0; r < sizes.ranks; ++r) {
      const Ownership owned{layout, plan, r};
      std::vector<int> state(static_cast<std::size_t>(owned.elements()), 0);
      for (const OwnedPiece& piece : owned.pieces()) {
        const nn::PlacedParameter& placed = layout.parameters[piece.parameter];
        const Bucket& bucket = plan.buckets()[piece.bucket];
        const grid::Range& slice = bucket.slices[static_cast<std::size_t>(r)];
        ASSERT_GE(piece.range.begin, 0);
        ASSERT_LE(piece.range.end, placed.spec.shape.count());
        ASSERT_EQ(piece.arena_offset, placed.offset + piece.range.begin);
        ASSERT_GE(piece.arena_offset, bucket.elements.begin + slice.begin);
        ASSERT_LE(piece.arena_offset + piece.range.count(), bucket.elements.begin + slice.end);
        for (std::int64_t i = 0; i < piece.range.count(); ++i) {
          ++seen[static_cast<std::size_t>(piece.arena_offset + i)];
          ASSERT_EQ(++state.at(static_cast<std::size_t>(piece.owned_offset + i)), 1);
        }
      }
    }
    for (const nn::PlacedParameter& placed : layout.parameters) {
      for (std::int64_t i = 0; i < placed.spec.shape.count(); ++i) {
        ASSERT_EQ(seen[static_cast<std::size_t>(placed.offset + i)], 1);
      }
    }
  }
}

}  // namespace
}  // namespace strata::optim::test::buckets_test
