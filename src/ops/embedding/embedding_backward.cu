#include "strata/core/error.hpp"
#include "strata/ops/embedding.hpp"

#include "checks.hpp"
#include "cuda/chunks.hpp"
#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"
#include "embedding/pieces.hpp"

// Sorts the rows of dy by table row; one block sums each piece of a run of equal rows. The pieces
// depend only on the places in the run; their sums are added in order.
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

/// Tiles that a thread searches at once, so that it need not wait for one load after the other.
constexpr int kSearches = 4;

/// Merge by rank, one thread for each key: its rank is the number of smaller keys in all tiles.
__global__ void __launch_bounds__(kThreads)
    merge_tiles_kernel(std::int64_t rows, const Key* sorted, Key* merged) {
  const std::int64_t i = thread_number();
  if (i >= rows) {
    return;
  }
  const Key key = sorted[i];
  std::int64_t place = 0;
  for (std::int64_t begin = 0; begin < rows; begin += kSearches * kTileKeys) {
    std::int64_t smaller[kSearches] = {};
#pragma unroll 1
    for (int step = kTileKeys; step > 0; step /= 2) {
#pragma unroll
      for (int k = 0; k < kSearches; ++k) {
        const std::int64_t tile = begin + k * kTileKeys;
        const std::int64_t probe = smaller[k] + step;
        if (probe <= kTileKeys && tile + probe <= rows && sorted[tile + probe - 1] < key) {
          smaller[k] = probe;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kSearches; ++k) {
      place += smaller[k];
    }
  }
  merged[place] = key;
}

/// Whether the place of key `at` in its run is a multiple of kEmbeddingPieceRows.
__device__ bool begins_piece(const Key* keys, std::int64_t at) {
  const std::int64_t table_row = table_row_of(keys[at]);
  if (at == 0 || table_row_of(keys[at - 1]) != table_row) {
    return true;
  }
  if (at < kEmbeddingPieceRows || table_row_of(keys[at - kEmbeddingPieceRows]) != table_row) {
    return false;
  }
  std::int64_t low = 0;
  std::int64_t high = at - kEmbeddingPieceRows;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (table_row_of(keys[middle]) < table_row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return (at - low) % kEmbeddingPieceRows == 0;
}

constexpr int kSumThreads = 128;
/// Keys that a block of threads has.
constexpr int kBlockKeys = 8;
/// Loads in flight.
constexpr int kAhead = 8;

/// One block for kBlockKeys keys and a tile of columns: sums the rows of dy for each piece that
/// begins there, in order. The first piece of a run goes into the table's row, another one into
/// pieces[at / kEmbeddingPieceRows], where `at` is its first key: no two pieces of one run or of
/// two have the same place.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kSumThreads)
    sum_pieces_kernel(std::int64_t rows, std::int64_t columns, std::int64_t tiles, const Key* keys,
                      std::int64_t table_rows, const T* dy, bool adds, Compute<T>* pieces,
                      Compute<T>* dtable) {
  using C = Compute<T>;
  __shared__ bool begins[kBlockKeys];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t first_key = blockIdx.x / tiles * kBlockKeys;
  if (thread < kBlockKeys) {
    const std::int64_t at = first_key + thread;
    begins[thread] = at < rows && table_row_of(keys[at]) < table_rows && begins_piece(keys, at);
  }
  __syncthreads();
  const std::int64_t column = (blockIdx.x % tiles * kSumThreads + thread) * kWidth;
  if (column >= columns) {
    return;
  }
  for (int number = 0; number < kBlockKeys; ++number) {
    if (!begins[number]) {
      continue;
    }
    const std::int64_t at = first_key + number;
    const std::int64_t end = at + kEmbeddingPieceRows < rows ? at + kEmbeddingPieceRows : rows;
    const std::int64_t table_row = table_row_of(keys[at]);
    const bool is_first = at == 0 || table_row_of(keys[at - 1]) != table_row;
    C sums[kWidth] = {};
    bool goes_on = true;
    for (std::int64_t next = at; goes_on && next < end; next += kAhead) {
      Chunk<T, kWidth> terms[kAhead];
      bool belongs[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const Key key = next + k < end ? keys[next + k] : ~Key{0};
        belongs[k] = table_row_of(key) == table_row;
        if (belongs[k]) {
          terms[k] = elements_at<kWidth>(dy + dy_row_of(key) * columns + column);
        }
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
#pragma unroll
        for (int i = 0; belongs[k] && i < kWidth; ++i) {
          sums[i] += value_of(terms[k].at[i]);
        }
      }
      goes_on = belongs[kAhead - 1];
    }
    C* const to =
        (is_first ? dtable + table_row * columns : pieces + at / kEmbeddingPieceRows * columns) +
        column;
    Chunk<C, kWidth> chunk{};
    if (is_first && adds) {
      chunk = elements_at<kWidth>(to);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      chunk.at[i] = is_first && adds ? chunk.at[i] + sums[i] : sums[i];
    }
    store_elements(to, chunk);
  }
}

/// One block for kEmbeddingPieceRows keys and a tile of columns. At most one run of more keys
/// begins there: adds its pieces after the first to the table's row, in order.
template <int kWidth, typename C>
__global__ void __launch_bounds__(kSumThreads)
    add_pieces_kernel(std::int64_t rows, std::int64_t columns, std::int64_t tiles, const Key* keys,
                      std::int64_t table_rows, const C* pieces, C* dtable) {
  static_assert(kEmbeddingPieceRows <= kSumThreads);
  __shared__ int long_run;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t first_key = blockIdx.x / tiles * kEmbeddingPieceRows;
  if (thread == 0) {
    long_run = -1;
  }
  __syncthreads();
  if (const std::int64_t at = first_key + thread;
      thread < kEmbeddingPieceRows && at + kEmbeddingPieceRows < rows) {
    const std::int64_t table_row = table_row_of(keys[at]);
    if (table_row < table_rows && table_row_of(keys[at + kEmbeddingPieceRows]) == table_row &&
        (at == 0 || table_row_of(keys[at - 1]) != table_row)) {
      long_run = thread;
    }
  }
  __syncthreads();
  const std::int64_t column = (blockIdx.x % tiles * kSumThreads + thread) * kWidth;
  if (long_run < 0 || column >= columns) {
    return;
  }
  const std::int64_t begin = first_key + long_run;
  const std::int64_t table_row = table_row_of(keys[begin]);
  C* const to = dtable + table_row * columns + column;
  Chunk<C, kWidth> sums = elements_at<kWidth>(to);
  bool goes_on = true;
  for (std::int64_t next = begin + kEmbeddingPieceRows; goes_on;
       next += kAhead * kEmbeddingPieceRows) {
    Chunk<C, kWidth> terms[kAhead];
    bool belongs[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const std::int64_t at = next + k * kEmbeddingPieceRows;
      belongs[k] = at < rows && table_row_of(keys[at]) == table_row;
      if (belongs[k]) {
        terms[k] = elements_at<kWidth>(pieces + at / kEmbeddingPieceRows * columns + column);
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int i = 0; belongs[k] && i < kWidth; ++i) {
        sums.at[i] += terms[k].at[i];
      }
    }
    goes_on = belongs[kAhead - 1];
  }
  store_elements(to, sums);
}

}  // namespace

void embedding_backward(Context& context, const ConstTensorView& ids, const ConstTensorView& dy,
                        std::int64_t first_id, const TensorView& dtable, Accumulate accumulate) {
  const auto [rows, columns] = rows_of(dy.shape());
  const std::int64_t table_rows = dtable.shape()[0];
  require(rows < (std::int64_t{1} << kRowBits) && table_rows < (std::int64_t{1} << kRowBits),
          "the gradient of a table of {} rows from {} rows", table_rows, rows);
  const std::int64_t windows = count_of(rows, kEmbeddingPieceRows);
  // The keys, twice; then the sums of pieces.
  const std::int64_t sums_bytes = windows * columns * size_bytes(dtable.dtype());
  Key* const sorted =
      scratch_of<Key>(context, 2 * rows + count_of(sums_bytes, static_cast<int>(sizeof(Key))));
  Key* const merged = sorted + rows;
  launch(context, "sorting ids", {count_of(rows, kTileKeys), kThreads, 0}, sort_tiles_kernel, rows,
         ids.device<std::int64_t>(), first_id, table_rows, sorted);
  launch(context, "sorting ids", grid_of(rows), merge_tiles_kernel, rows, sorted, merged);
  with_device_type(dy.dtype(), [&, rows = rows, columns = columns]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = dy.device<T>();
    C* const to = dtable.device<C>();
    C* const pieces = reinterpret_cast<C*>(merged + rows);
    with_width(
        columns,
        [&](auto width) {
          const std::int64_t tiles = count_of(columns, kSumThreads * width);
          launch(context, "embedding_backward",
                 {count_of(rows, kBlockKeys) * tiles, kSumThreads, 0},
                 sum_pieces_kernel<width(), T>, rows, columns, tiles, merged, table_rows, from,
                 accumulate == Accumulate::kAdd, pieces, to);
          launch(context, "adding pieces of a gradient", {windows * tiles, kSumThreads, 0},
                 add_pieces_kernel<width(), C>, rows, columns, tiles, merged, table_rows, pieces,
                 to);
        },
        from, to);
  });
}

}  // namespace strata::ops::cuda
