#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/nn/layer.hpp"

namespace strata::nn {

/// A piece of a microbatch's rows: products and messages of neighbouring pieces overlap.
struct RowPiece {
  grid::Range all;    ///< among all rows
  grid::Range own;    ///< the rank's rows of the piece, among all rows
  grid::Range local;  ///< the same rows in the rank's tensor, which holds its rows piece by piece
};

/// The pieces of `rows` rows: under kTokens a rank owns an even part of each, else all rows. They
/// are functions of config and shape, so that products have the same shapes on every grid.
[[nodiscard]] inline std::vector<RowPiece> row_pieces(const LayerPass& pass, Placement placement,
                                                      std::int64_t rows) {
  std::vector<RowPiece> pieces;
  std::int64_t local = 0;
  for (std::int64_t p = 0; p < pass.shape.row_pieces; ++p) {
    const grid::Range all = grid::even_part(rows, pass.shape.row_pieces, p);
    grid::Range own = all;
    if (placement == Placement::kTokens) {
      const grid::Range part = pass.shards.own_rows(all.count());
      own = {all.begin + part.begin, all.begin + part.end};
    }
    pieces.push_back({.all = all, .own = own, .local = {local, local + own.count()}});
    local += own.count();
  }
  return pieces;
}

/// All rows as one piece.
[[nodiscard]] inline std::vector<RowPiece> one_piece(std::int64_t rows) {
  return {{.all = {0, rows}, .own = {0, rows}, .local = {0, rows}}};
}

/// Rows [range) of a matrix.
template <typename View>
[[nodiscard]] View row_range(const View& matrix, const grid::Range& range) {
  const std::int64_t width = matrix.shape().back();
  return matrix.flat_slice(range.begin * width, range.count() * width)
      .reshaped(Shape{range.count(), width});
}

/// Gathers of rows, piece by piece, from the ranks that own them.
class RowGather {
 public:
  /// Shapes: whole rows x anything. Without sequence parallelism there is nothing to gather.
  RowGather(const LayerPass& pass, Placement placement, const TensorView& whole)
      : pass_(pass), gathers_(placement == Placement::kTokens), whole_(whole) {}

  /// Once the rank's own rows of a piece are written. Communication: starts an all-gather over the
  /// tensor group.
  void begin(const RowPiece& piece) {
    if (gathers_) {
      requests_.push_back(pass_.shards.begin_gather_rows(row_range(whole_, piece.all)));
    }
  }
  /// Waits for the next piece, in the order of begin().
  void wait() {
    if (waited_ < requests_.size()) {
      pass_.shards.wait(requests_[waited_]);
      ++waited_;
    }
  }
  void wait_for_all() {
    while (waited_ < requests_.size()) {
      wait();
    }
  }

 private:
  const LayerPass& pass_;
  bool gathers_;
  TensorView whole_;
  std::vector<comm::Request> requests_;
  std::size_t waited_ = 0;
};

}  // namespace strata::nn
