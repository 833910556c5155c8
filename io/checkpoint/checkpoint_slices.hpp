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

/// Where the slices of a tensor lie in it, and what two of them have in common.
namespace strata::io::checkpoint {

/// Whether a tensor of `shape` has the indices that `shard` names.
[[nodiscard]] bool lies_within(const ShardSlice& shard, const Shape& shape);

/// The shape of the shard's part of a tensor.
[[nodiscard]] Shape shape_of(const ShardSlice& shard, const Shape& tensor);

/// `shard`, or the whole tensor where that is all of it: one place has one name.
[[nodiscard]] ShardSlice simplest(const ShardSlice& shard, const Shape& tensor);

/// As in "tensor 'a' (indices 2 to 3 of dimension 0)".
[[nodiscard]] std::string text_of(const std::string& tensor, const ShardSlice& shard);

/// The boxes of the tensor that row-major elements `range` of the shard's part make up, in element
/// order.
[[nodiscard]] std::vector<grid::Box> boxes_of(const Shape& tensor, const ShardSlice& shard,
                                              const grid::Range& range);

/// Elements that two slices have in common and that lie together in both, with their places in
/// each.
struct Run {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t count = 0;

  friend bool operator==(const Run&, const Run&) = default;
};

/// The fewest runs of what the slices `from` and `to`, given by their boxes, have in common; they
/// ascend in both.
[[nodiscard]] std::vector<Run> common_runs(std::span<const grid::Box> from,
                                           std::span<const grid::Box> to);

/// Reads runs of a slice's data set to their places in `out`. Pre: runs ascend. Long runs are read
/// straight; short ones are cut out of larger reads, for many small ones take long.
void read_runs(const hdf5::Dataset& dataset, std::span<const Run> runs, const TensorView& out);

}  // namespace strata::io::checkpoint
