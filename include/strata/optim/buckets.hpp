#pragma once

#include <cstdint>
#include <vector>

#include "strata/grid/grid.hpp"
#include "strata/nn/parameter.hpp"

namespace strata::optim {

/// A contiguous piece of a stage's arena that is reduced as one message.
struct Bucket {
  /// What its parameters are to the stage.
  enum class Use {
    kOwn,      ///< used here alone
    kShared,   ///< owned here; another layer borrows them and adds to their gradients
    kBorrowed  ///< owned by another layer: gradients are reduced here, and updated there
  };

  Use use = Use::kOwn;
  grid::Range elements;
  /// Its gradients are complete when those of this layer are.
  std::int64_t ready_layer = 0;
  /// For each data rank the part that it sums, updates and hands out, relative to elements.begin;
  /// whole blocks.
  std::vector<grid::Range> slices;
};

/// The buckets of a stage and how the data ranks share them (ZeRO stage 1). Buckets are listed in
/// the order in which the backward pass completes them: from the arena's end. The shared and the
/// borrowed part of the arena are cut by themselves, each from its end, so that the buckets of the
/// one are those of the other wherever both lie.
class BucketPlan {
 public:
  /// Pre: bucket_elements >= ParameterLayout::kBlock.
  BucketPlan(const nn::ParameterLayout& layout, std::int64_t data_ranks,
             std::int64_t bucket_elements);

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Those of one use, in order.
  [[nodiscard]] std::vector<Bucket> buckets_for(Bucket::Use use) const;
  /// Elements that one rank updates: its slices of all but the borrowed buckets.
  [[nodiscard]] std::int64_t owned_elements(std::int64_t rank) const;
  /// The largest slice of any bucket and rank.
  [[nodiscard]] std::int64_t largest_slice() const;
  /// A text of all boundaries, for comparing plans.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<Bucket> buckets_;
};

/// A run of elements of one parameter, or of a shard's slice of one, that one data rank owns.
struct OwnedPiece {
  std::size_t bucket = 0;
  /// Index into the layout's parameters.
  std::size_t parameter = 0;
  grid::Range range;              ///< within the placed slice, row-major
  std::int64_t arena_offset = 0;  ///< of its first element in the arena
  std::int64_t owned_offset = 0;  ///< of its first element in the rank's optimizer state
};

/// All pieces that `rank` owns, by bucket; none in borrowed buckets.
[[nodiscard]] std::vector<OwnedPiece> owned_pieces(const nn::ParameterLayout& layout,
                                                   const BucketPlan& plan, std::int64_t rank);

}  // namespace strata::optim
