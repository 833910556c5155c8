#pragma once

#include <cstdint>
#include <vector>

#include "strata/grid/grid.hpp"
#include "strata/nn/parameter.hpp"

namespace strata::optim {

inline constexpr std::int64_t kBlock = nn::ParameterLayout::kBlock;

/// A contiguous range of a stage's gradient arena that is reduced in one exchange.
struct Bucket {
  /// Who owns and who uses its parameters.
  enum class Use {
    kOwn,      ///< owned here and used only here
    kShared,   ///< owned here and also used by another layer, which adds to the gradients
    kBorrowed  ///< owned by another layer: gradients are reduced here, weights are updated there
  };

  Use use = Use::kOwn;
  grid::Range elements;
  /// Its gradients are complete once the gradients of this layer are.
  std::int64_t ready_layer = 0;
  /// For each data rank the slice that it reduces, updates and gathers, relative to elements.begin;
  /// whole blocks.
  std::vector<grid::Range> slices;
};

/// The buckets of a stage and their slices per data rank (ZeRO stage 1). Buckets are in the order
/// in which the backward pass completes them: from the end of the arena. The shared and the
/// borrowed part are divided separately, each from its end, so that both stages of a tied parameter
/// have the same buckets.
class BucketPlan {
 public:
  /// A bucket has `least_elements` and reaches on to where a layer begins, so that at most one is
  /// complete with a layer; it has at most `most_elements`.
  /// Pre: kBlock <= least_elements <= most_elements.
  BucketPlan(const nn::ParameterLayout& layout, std::int64_t data_ranks,
             std::int64_t least_elements, std::int64_t most_elements);
  /// Buckets of a fixed size: a layer may have several.
  BucketPlan(const nn::ParameterLayout& layout, std::int64_t data_ranks, std::int64_t elements)
      : BucketPlan(layout, data_ranks, elements, elements) {}

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The buckets of one use, in order.
  [[nodiscard]] std::vector<Bucket> buckets_for(Bucket::Use use) const;
  /// The largest slice of any bucket and rank.
  [[nodiscard]] std::int64_t largest_slice() const;
  /// All boundaries as text, to compare plans.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<Bucket> buckets_;
};

/// Consecutive elements of one parameter, or of a shard's slice of it, that one rank owns.
struct OwnedPiece {
  std::size_t bucket = 0;
  /// Index into the layout's parameters.
  std::size_t parameter = 0;
  grid::Range range;              ///< within the placed slice, row-major
  std::int64_t arena_offset = 0;  ///< of its first element in the arena
  std::int64_t owned_offset = 0;  ///< of its first element among those that the rank owns
  /// The same without whole blocks of frozen parameters; not used by these.
  std::int64_t state_offset = 0;
};

/// Which elements of a layout one of the ranks that share it owns: its slices of all buckets except
/// borrowed ones. Refers to layout and buckets.
struct Ownership {
  const nn::ParameterLayout& layout;
  const BucketPlan& buckets;
  std::int64_t rank = 0;

  [[nodiscard]] std::int64_t elements() const;
  /// Without whole blocks of frozen parameters: the length of a tensor of optimizer state.
  [[nodiscard]] std::int64_t state_elements() const;
  /// In order of buckets.
  [[nodiscard]] std::vector<OwnedPiece> pieces() const;
};

}  // namespace strata::optim
