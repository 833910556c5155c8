#include "strata/core/error.hpp"
#include "strata/ops/embedding.hpp"

#include "checks.hpp"
#include "cuda/chunks.hpp"
#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"

// Sorts the rows of dy by table row; one block sums each run of equal rows.
namespace strata::ops::cuda {
namespace {

/// Sort key: a table row in the high bits, the row of dy in the low bits. Keys are distinct, so
/// their order is unique and keeps the rows of one id in order.
using Key = std::uint64_t;
constexpr int kRowBits = 32;

__device__ std::int64_t table_row_of(Key key) {
  return static_cast<std::int64_t>(key >> kRowBits);
}
__device__ std::int64_t dy_row_of(Key key) {
  return static_cast<std::int64_t>(key & ((Key{1} << kRowBits) - 1));
}

/// Keys of a tile that a block sorts in shared memory.
constexpr int kTileKeys = 2048;

/// Bitonic sort of one tile of keys by a block. Rows outside the table get the row after its last.
/// Source: Batcher, "Sorting networks and their applications", AFIPS 1968.
__global__ void __launch_bounds__(kThreads)
    sort_tiles_kernel(std::int64_t rows, const std::int64_t* ids, std::int64_t first_id,
                      std::int64_t table_rows, Key* sorted) {
  __shared__ Key keys[kTileKeys];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTileKeys;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys; i += kThreads) {
    const std::int64_t row = begin + i;
    keys[i] = ~Key{0};
    if (row < rows) {
      const std::int64_t at = ids[row] - first_id;
      const bool is_inside = at >= 0 && at < table_rows;
      keys[i] = static_cast<Key>(is_inside ? at : table_rows) << kRowBits | static_cast<Key>(row);
    }
  }
  __syncthreads();
  for (int size = 2; size <= kTileKeys; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      for (int pair = static_cast<int>(threadIdx.x); pair < kTileKeys / 2; pair += kThreads) {
        const int low = 2 * pair - (pair & (distance - 1));
        const int high = low + distance;
        const Key a = keys[low];
        const Key b = keys[high];
        if ((a > b) == ((low & size) == 0)) {
          keys[low] = b;
          keys[high] = a;
        }
      }
      __syncthreads();
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys && begin + i < rows; i += kThreads) {
    sorted[begin + i] = keys[i];
  }
}

/// Merge by rank, one thread for each key: its rank is its index in its own tile plus the number of
/// smaller keys in the others.
__global__ void __launch_bounds__(kThreads)
    merge_tiles_kernel(std::int64_t rows, const Key* sorted, Key* merged) {
  const std::int64_t i = thread_number();
  if (i >= rows) {
    return;
  }
  const Key key = sorted[i];
  const std::int64_t own = i / kTileKeys * kTileKeys;
  std::int64_t place = i - own;
  for (std::int64_t begin = 0; begin < rows; begin += kTileKeys) {
    if (begin == own) {
      continue;
    }
    std::int64_t low = begin;
    std::int64_t high = begin + kTileKeys < rows ? begin + kTileKeys : rows;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (sorted[middle] < key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    place += low - begin;
  }
  merged[place] = key;
}

constexpr int kSumThreads = 128;
/// Loads in flight.
constexpr int kAhead = 8;

/// One block for each key and tile of columns; it exits unless its key is the first of a table row.
/// Sums all rows of dy for that table row, in order; no two blocks write the same element.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    sum_runs_kernel(std::int64_t rows, int columns, std::int64_t tiles, const Key* keys,
                    std::int64_t table_rows, const T* dy, bool adds, Compute<T>* dtable) {
  using C = Compute<T>;
  const std::int64_t first_key = blockIdx.x / tiles;
  const std::int64_t table_row = table_row_of(keys[first_key]);
  const int column = static_cast<int>(blockIdx.x % tiles * kSumThreads + threadIdx.x) * kWide<T>;
  if (table_row == table_rows || column >= columns ||
      (first_key > 0 && table_row_of(keys[first_key - 1]) == table_row)) {
    return;
  }
  C sums[kWide<T>] = {};
  bool goes_on = true;
  for (std::int64_t next = first_key; goes_on; next += kAhead) {
    Wide<T> terms[kAhead];
    bool belongs[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const Key key = next + k < rows ? keys[next + k] : ~Key{0};
      belongs[k] = table_row_of(key) == table_row;
      if (belongs[k]) {
        terms[k] = chunk_at(dy + dy_row_of(key) * columns, columns, column, to_storage<T>(C{0}));
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int i = 0; belongs[k] && i < kWide<T>; ++i) {
        sums[i] += value_of(terms[k].at[i]);
      }
    }
    goes_on = belongs[kAhead - 1];
  }
  C* const to = dtable + table_row * columns;
#pragma unroll
  for (int i = 0; i < kWide<T>; i += kWide<C>) {
    if (column + i < columns) {
      Wide<C> chunk;
      if (adds) {
        chunk = chunk_at(to, columns, column + i, C{0});
      }
#pragma unroll
      for (int j = 0; j < kWide<C>; ++j) {
        chunk.at[j] = adds ? chunk.at[j] + sums[i + j] : sums[i + j];
      }
      store_chunk(to, columns, column + i, chunk);
    }
  }
}

}  // namespace

void embedding_backward(Context& context, const ConstTensorView& ids, const ConstTensorView& dy,
                        std::int64_t first_id, const TensorView& dtable, Accumulate accumulate) {
  const auto [rows, columns] = rows_of(dy.shape());
  const std::int64_t table_rows = dtable.shape()[0];
  require_rows("embedding_backward", columns, kLongestRow);
  require(rows < (std::int64_t{1} << kRowBits) && table_rows < (std::int64_t{1} << kRowBits),
          "the gradient of a table of {} rows from {} rows", table_rows, rows);
  Key* const sorted = scratch_of<Key>(context, 2 * rows);
  Key* const merged = sorted + rows;
  launch(context, "sorting ids", {(rows + kTileKeys - 1) / kTileKeys, kThreads, 0},
         sort_tiles_kernel, rows, ids.device<std::int64_t>(), first_id, table_rows, sorted);
  launch(context, "sorting ids", grid_of(rows), merge_tiles_kernel, rows, sorted, merged);
  with_device_type(dy.dtype(), [&, rows = rows, columns = columns]<typename T>(T) {
    const std::int64_t tile = std::int64_t{kSumThreads} * kWide<T>;
    const std::int64_t tiles = (columns + tile - 1) / tile;
    launch(context, "embedding_backward", {rows * tiles, kSumThreads, 0}, sum_runs_kernel<T>, rows,
           static_cast<int>(columns), tiles, merged, table_rows, dy.device<T>(),
           accumulate == Accumulate::kAdd, dtable.device<Compute<T>>());
  });
}

}  // namespace strata::ops::cuda
