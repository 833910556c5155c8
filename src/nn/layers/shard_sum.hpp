#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "strata/nn/layer.hpp"
#include "strata/ops/elementwise.hpp"

#include "layers/row_pieces.hpp"

namespace strata::nn {

/// A matrix that is the sum of one contribution for each shard, in the memory that workspace()
/// lists. Each piece of its rows is summed by messages of its own.
class ShardSum {
 public:
  /// Memory for a sum of rows x columns; empty tensors for no rows.
  [[nodiscard]] static std::vector<TensorSpec> workspace(const PassShape& pass, std::int64_t rows,
                                                         std::int64_t columns) {
    const DType dtype = compute_dtype(pass.dtype);
    const bool rounds = pass.shard_sums == DType::kBfloat16;
    std::vector<TensorSpec> specs = slot_list<Workspace, TensorSpec>(
        {{Workspace::kReceived,
          {{comm::ShardGroup::receive_elements(pass.shards.count, pass.shards.own, rows, columns)},
           sends_rounded(pass.shard_sums, pass.shards.own) ? DType::kBfloat16 : dtype}},
         {Workspace::kRounded, {{rounds ? rows : 0, columns}, DType::kBfloat16}}});
    const std::int64_t count = comm::ShardGroup::accumulators(pass.shards.count, pass.shards.own);
    specs.insert(specs.end(), static_cast<std::size_t>(count), {{rows, columns}, dtype});
    return specs;
  }

  /// Pre: `workspace` is as listed for at least as many rows.
  ShardSum(const LayerPass& pass, const TensorSlots& workspace, std::vector<RowPiece> pieces,
           std::int64_t columns)
      : pass_(pass),
        received_(workspace.at(Workspace::kReceived)),
        rounded_(workspace.at(Workspace::kRounded)),
        pieces_(std::move(pieces)) {
    const std::int64_t rows = pieces_.back().all.end;
    for (const TensorView& accumulator : workspace.from(Workspace::kAccumulators)) {
      accumulators_.push_back(
          accumulator.flat_slice(0, rows * columns).reshaped(Shape{rows, columns}));
    }
  }

  /// Starts to sum what make(piece, shard, into) writes for each shard, piece by piece.
  /// Communication: starts a reduce-scatter for each piece over the tensor group.
  template <typename Make>
  void begin(const Make& make) {
    for (const RowPiece& piece : pieces_) {
      add_shards(piece.all,
                 [&](std::int64_t shard, const TensorView& into) { make(piece, shard, into); });
      start(piece);
    }
  }

  /// begin() in parts: the rows in `range` of what make(shard, into) writes, then, after all rows,
  /// start().
  template <typename Make>
  void add_shards(const grid::Range& range, const Make& make) {
    const TensorView rounded = rounded_.empty() ? TensorView() : row_range(rounded_, range);
    pass_.shards.partial_sums(pass_.context, partial_sums(range),
                              [&](std::int64_t shard, const TensorView& into) {
                                make(shard, rounded.empty() ? into : rounded);
                                if (!rounded.empty() && into.dtype() != rounded.dtype()) {
                                  ops::convert(pass_.context, rounded, into);
                                }
                              });
  }
  void start() {
    for (const RowPiece& piece : pieces_) {
      start(piece);
    }
  }

  /// After begin(): calls use(piece, rows of the sum that the rank holds under `placement`) for
  /// each piece. Communication: waits for the reduce-scatters; except for kTokens one all-gather
  /// for each piece.
  template <typename Use>
  void end(Placement placement, const Use& use) {
    const TensorView& sum = accumulators_.front();
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const RowPiece& piece = pieces_[p];
      if (placement == Placement::kTokens) {
        pass_.shards.end_reduce_scatter(pass_.context, sums_[p], row_range(sum, piece.all));
        use(piece, row_range(sum, piece.own));
      } else {
        gathers_.push_back(
            pass_.shards.end_all_reduce(pass_.context, sums_[p], row_range(sum, piece.all)));
      }
    }
    for (std::size_t p = 0; p < gathers_.size(); ++p) {
      pass_.shards.wait(gathers_[p]);
      use(pieces_[p], row_range(sum, pieces_[p].all));
    }
  }

 private:
  /// kRounded: one shard's contribution in bfloat16.
  enum class Workspace { kReceived, kRounded, kAccumulators };

  /// Whether what a rank sends is one rounded contribution. A sum of several is float32, which
  /// takes no more bytes than they do.
  [[nodiscard]] static bool sends_rounded(DType shard_sums, const grid::Range& own) {
    return shard_sums == DType::kBfloat16 && own.count() == 1;
  }

  [[nodiscard]] std::int64_t columns() const { return accumulators_.front().shape().back(); }
  void start(const RowPiece& piece) {
    const std::int64_t elements = comm::ShardGroup::receive_elements(
        pass_.shards.shards(), pass_.shards.own(), piece.all.count(), columns());
    sums_.push_back(pass_.shards.begin_sum(
        partial_sums(piece.all),
        received_.flat_slice(static_cast<std::int64_t>(sums_.size()) * elements, elements)));
    pass_.engine.progress();
  }
  /// Rows [range) of what a rank sums by itself.
  [[nodiscard]] std::vector<TensorView> partial_sums(const grid::Range& range) const {
    if (sends_rounded(pass_.shape.shard_sums, pass_.shards.own())) {
      return {row_range(rounded_, range)};
    }
    std::vector<TensorView> views;
    for (const TensorView& accumulator : accumulators_) {
      views.push_back(row_range(accumulator, range));
    }
    return views;
  }

  const LayerPass& pass_;
  TensorView received_;
  TensorView rounded_;
  std::vector<RowPiece> pieces_;
  std::vector<TensorView> accumulators_;
  std::vector<comm::OrderedReduction::Pending> sums_;
  std::vector<comm::Request> gathers_;
};

}  // namespace strata::nn
