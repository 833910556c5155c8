#include "checkpoint/checkpoint_slices.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

namespace strata::io::checkpoint {
namespace {

// Elements of a run that is read directly, and of one read that serves short runs.
constexpr std::int64_t kLongRun = 1 << 14;
constexpr std::int64_t kWindow = 1 << 20;

// Row-major strides of a box.
std::vector<std::int64_t> strides_of(const grid::Box& box) {
  std::vector<std::int64_t> strides(box.count.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * box.count[d];
  }
  return strides;
}

grid::Box intersection(const grid::Box& a, const grid::Box& b) {
  grid::Box common = a;
  for (std::size_t d = 0; d < a.start.size(); ++d) {
    common.start[d] = std::max(a.start[d], b.start[d]);
    const std::int64_t end = std::min(a.start[d] + a.count[d], b.start[d] + b.count[d]);
    common.count[d] = std::max<std::int64_t>(0, end - common.start[d]);
  }
  return common;
}

// Offset within `box` of the element with these tensor indices.
std::int64_t offset_in(const grid::Box& box, std::span<const std::int64_t> strides,
                       std::span<const std::int64_t> indices) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < indices.size(); ++d) {
    offset += (indices[d] - box.start[d]) * strides[d];
  }
  return offset;
}

void append(std::vector<Run>& runs, const Run& run) {
  if (!runs.empty() && runs.back().from + runs.back().count == run.from &&
      runs.back().to + runs.back().count == run.to) {
    runs.back().count += run.count;
  } else {
    runs.push_back(run);
  }
}

// Appends the runs that boxes `a` and `b` share. `first_a` and `first_b` are the offsets of the
// boxes in their slices.
void append_common(const grid::Box& a, std::int64_t first_a, const grid::Box& b,
                   std::int64_t first_b, std::vector<Run>& runs) {
  const grid::Box common = intersection(a, b);
  const std::int64_t elements = common.elements();
  if (elements == 0) {
    return;
  }
  // From dimension `inner` on, elements are contiguous in both.
  std::size_t inner = common.count.empty() ? 0 : common.count.size() - 1;
  while (inner > 0 && common.count[inner] == a.count[inner] &&
         common.count[inner] == b.count[inner]) {
    --inner;
  }
  std::int64_t run_length = 1;
  for (std::size_t d = inner; d < common.count.size(); ++d) {
    run_length *= common.count[d];
  }
  const std::vector<std::int64_t> strides_a = strides_of(a);
  const std::vector<std::int64_t> strides_b = strides_of(b);
  std::vector<std::int64_t> indices = common.start;
  for (std::int64_t done = 0; done < elements; done += run_length) {
    append(runs, {.from = first_a + offset_in(a, strides_a, indices),
                  .to = first_b + offset_in(b, strides_b, indices),
                  .count = run_length});
    for (std::size_t d = inner; d-- > 0;) {
      if (++indices[d] < common.start[d] + common.count[d]) {
        break;
      }
      indices[d] = common.start[d];
    }
  }
}

void read_elements(const hdf5::Dataset& dataset, std::int64_t begin, std::int64_t count,
                   std::byte* out, std::int64_t element_bytes) {
  const std::array<grid::Box, 1> box{grid::Box{.start = {begin}, .count = {count}}};
  dataset.read(box, std::span(out, static_cast<std::size_t>(count * element_bytes)));
}

}  // namespace

bool lies_within(const ShardSlice& shard, const Shape& shape) {
  if (shard.dimension == ShardSlice::kNotSplit) {
    return true;
  }
  return shard.dimension >= 0 && shard.dimension < static_cast<std::int64_t>(shape.rank()) &&
         shard.first >= 0 && shard.count >= 0 &&
         shard.count <= shape[static_cast<std::size_t>(shard.dimension)] &&
         shard.first <= shape[static_cast<std::size_t>(shard.dimension)] - shard.count;
}

Shape shape_of(const ShardSlice& shard, const Shape& tensor) {
  if (shard.dimension == ShardSlice::kNotSplit) {
    return tensor;
  }
  std::vector<std::int64_t> extents(tensor.extents().begin(), tensor.extents().end());
  extents[static_cast<std::size_t>(shard.dimension)] = shard.count;
  return Shape(extents);
}

ShardSlice simplest(const ShardSlice& shard, const Shape& tensor) {
  return shape_of(shard, tensor) == tensor ? ShardSlice{} : shard;
}

std::string text_of(const std::string& tensor, const ShardSlice& shard) {
  if (shard.dimension == ShardSlice::kNotSplit) {
    return fmt::format("tensor '{}'", tensor);
  }
  return fmt::format("tensor '{}' (indices {} to {} of dimension {})", tensor, shard.first,
                     shard.first + shard.count - 1, shard.dimension);
}

std::vector<grid::Box> boxes_of(const Shape& tensor, const ShardSlice& shard,
                                const grid::Range& range) {
  std::vector<grid::Box> boxes = grid::boxes_of(shape_of(shard, tensor), range);
  if (shard.dimension != ShardSlice::kNotSplit) {
    for (grid::Box& box : boxes) {
      box.start[static_cast<std::size_t>(shard.dimension)] += shard.first;
    }
  }
  return boxes;
}

std::vector<Run> common_runs(std::span<const grid::Box> from, std::span<const grid::Box> to) {
  std::vector<Run> runs;
  std::int64_t first_from = 0;
  for (const grid::Box& a : from) {
    std::int64_t first_to = 0;
    for (const grid::Box& b : to) {
      append_common(a, first_from, b, first_to, runs);
      first_to += b.elements();
    }
    first_from += a.elements();
  }
  return runs;
}

void read_runs(const hdf5::Dataset& dataset, std::span<const Run> runs, const TensorView& out) {
  const std::int64_t element_bytes = size_bytes(out.dtype());
  std::vector<std::byte> window;
  grid::Range held;
  for (const Run& run : runs) {
    std::byte* target = out.raw() + run.to * element_bytes;
    if (run.count >= kLongRun) {
      read_elements(dataset, run.from, run.count, target, element_bytes);
      continue;
    }
    if (run.from + run.count > held.end) {
      held = {run.from, std::min(run.from + kWindow, runs.back().from + runs.back().count)};
      window.resize(static_cast<std::size_t>(held.count() * element_bytes));
      read_elements(dataset, held.begin, held.count(), window.data(), element_bytes);
    }
    std::memcpy(target, window.data() + (run.from - held.begin) * element_bytes,
                static_cast<std::size_t>(run.count * element_bytes));
  }
}

}  // namespace strata::io::checkpoint
