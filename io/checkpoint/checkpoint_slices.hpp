#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strata/core/shape.hpp"
#include "strata/grid/grid.hpp"
#include "strata/grid/slices.hpp"
#include "strata/io/checkpoint.hpp"

#include "hdf5/hdf5_file.hpp"

/// Geometry of slices: where a slice lies in its tensor, and the overlap of two slices.
namespace strata::io::checkpoint {

/// Whether the indices of `shard` exist in a tensor of `shape`.
[[nodiscard]] bool lies_within(const ShardSlice& shard, const Shape& shape);

/// The shape of the shard's part of a tensor.
[[nodiscard]] Shape shape_of(const ShardSlice& shard, const Shape& tensor);

/// Normalises `shard`: the default where it holds the whole tensor.
[[nodiscard]] ShardSlice simplest(const ShardSlice& shard, const Shape& tensor);

/// As in "tensor 'a' (indices 2 to 3 of dimension 0)".
[[nodiscard]] std::string text_of(const std::string& tensor, const ShardSlice& shard);

/// The boxes of the tensor that hold the row-major elements `range` of the shard's part, in element
/// order.
[[nodiscard]] std::vector<grid::Box> boxes_of(const Shape& tensor, const ShardSlice& shard,
                                              const grid::Range& range);

/// Elements that two slices share and that are contiguous in both; `from` and `to` are their
/// offsets in each.
struct Run {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t count = 0;

  friend bool operator==(const Run&, const Run&) = default;
};

/// The overlap of the slices `from` and `to`, given by their boxes, in as few runs as possible;
/// offsets ascend in both.
[[nodiscard]] std::vector<Run> common_runs(std::span<const grid::Box> from,
                                           std::span<const grid::Box> to);

/// Reads runs of a slice's data set into `out`. Long runs are read directly; short ones are copied
/// from larger reads, which are faster than many small ones. Pre: runs ascend.
void read_runs(const hdf5::Dataset& dataset, std::span<const Run> runs, const TensorView& out);

}  // namespace strata::io::checkpoint
