#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "strata/nn/layer.hpp"

namespace strata::nn {

/// Heads that several shards share. For each of `heads` a parameter has the rows of `group`
/// consecutive shards, then those that they share.
struct SharedHeads {
  std::int64_t heads = 1;
  std::int64_t group = 1;  ///< 1: each shard has heads of its own
  /// The shared rows of each head: of what has a row for each output of a product, and of each of
  /// the inner part's own parameters.
  std::int64_t product_rows = 0;
  std::vector<std::int64_t> own_rows = {};
  std::int64_t unit = 1;  ///< outputs of a product that are stored on one shard
};

/// Parameters with rows that several shards share. Stored are all rows once, split over the shards
/// like those of any other parameter. Each shard computes with a copy of its rows: those of it
/// alone, then the shared ones of its head. A pass gathers what is stored and makes the copies; the
/// gradient of a shared row is the sum of those of its copies, in the tree over a head's shards.
/// Why: docs/decisions/0027-replicated-key-value-heads.md.
class SharedRows {
 public:
  /// What a pass reads of the parameters.
  enum class Reads { kWeights, kNothing };

  /// The number of tensors that workspace() lists.
  static constexpr std::size_t kTensors = 5;

  SharedRows(const SharedHeads& heads, std::int64_t shards)
      : heads_(heads.heads), group_(heads.group), shards_(shards) {}

  /// Adds a parameter. `copies`: the parameter of index `parameter` in its layer, if every copied
  /// row were its own and `spec.unit` one shard's. `shared`: the last ones of those; none: no
  /// change. `unit`: stored rows that stay together.
  void add(std::size_t parameter, const ParameterSpec& copies, std::int64_t shared,
           std::int64_t unit);
  /// Changes the added ones among a layer's parameters to what is stored.
  void to_stored(std::vector<ParameterSpec>& parameters) const;

  [[nodiscard]] std::vector<TensorSpec> workspace(const PassShape& pass) const;

  /// Calls body(pass) with copies in the place of the added parameters. Communication: one
  /// all-gather over the tensor group where there are any and the pass reads them.
  void with_copies(const LayerPass& given, const TensorSlots& workspace,
                   const std::function<void(const LayerPass&)>& body,
                   Reads reads = Reads::kWeights) const;
  /// Adds the gradients of the copies, which with_copies() left, to those of the stored rows.
  /// Communication: one all-gather over the tensor group where there are any.
  void add_gradients(const LayerPass& given, const TensorSlots& workspace) const;

 private:
  /// kStored...: a block of stored rows for each shard; kCopies: a block for each own shard;
  /// kGradients...: ShardParts of the gradients of copies.
  enum class Workspace {
    kStoredAllShards,
    kStoredOwnShards,
    kCopies,
    kGradientsAllShards,
    kGradientsOwnShards
  };
  /// An added parameter. Its stored slice begins at `first_stored` of a block, a copy at
  /// `first_copy`.
  struct Rows {
    std::size_t parameter = 0;
    std::int64_t elements = 1;  ///< of a row
    std::int64_t own = 0;       ///< rows of one shard alone
    std::int64_t shared = 0;    ///< rows of all shards of a head
    std::int64_t unit = 1;
    std::int64_t first_stored = 0;
    std::int64_t first_copy = 0;
  };
  /// Consecutive elements of a stored parameter that lie together in copies too.
  struct Run {
    grid::Range stored;
    grid::Range shards;             ///< whose copies have them
    std::int64_t first_copied = 0;  ///< the first one in a copy
  };
  /// Elements of a Run that are in a shard's stored slice.
  struct Overlap {
    std::int64_t in_run = 0;
    std::int64_t in_slice = 0;
    std::int64_t count = 0;  ///< 0: there are none
  };

  [[nodiscard]] std::int64_t stored_rows(const Rows& rows) const {
    return heads_ * (group_ * rows.own + rows.shared);
  }
  [[nodiscard]] std::vector<Run> runs(const Rows& rows) const;
  /// The elements of a shard's stored slice.
  [[nodiscard]] grid::Range slice(const Rows& rows, std::int64_t shard) const;
  [[nodiscard]] Overlap overlap(const Rows& rows, const Run& run, std::int64_t shard) const;
  void make_copies(const LayerPass& pass, const TensorSlots& workspace) const;
  /// Views of the own shards' copies in blocks of them, shaped as parameters.
  [[nodiscard]] ParameterViews copies_in(const LayerPass& pass, const Rows& rows,
                                         const TensorView& blocks) const;

  std::int64_t heads_;
  std::int64_t group_;
  std::int64_t shards_;
  std::vector<Rows> rows_;
  /// Elements of a block of stored rows, and of one of copies.
  std::int64_t stored_block_ = 0;
  std::int64_t copy_block_ = 0;
};

}  // namespace strata::nn
