#include <algorithm>
#include <span>
#include <vector>

#include "strata/ops/reduce.hpp"

#include "cuda/chunks.hpp"
#include "cuda/map.hpp"
#include "cuda/ops.hpp"
#include "cuda/rows.hpp"

namespace strata::ops::cuda {
namespace {

struct Add {
  template <typename T>
  __device__ void operator()(T from, T& into) const {
    into += from;
  }
};

/// Parts that one pass reduces, and the depth of its stack of pending sums: log2(kMaxParts) + 1 for
/// a balanced tree.
constexpr int kMaxParts = 64;
constexpr int kMaxWaiting = 8;
constexpr int kNowhere = -1;

/// A reduction as a stack program for each thread: load a part, add the top `additions` pending
/// sums to it, then store the sum to a part, or to `out`, or push it.
template <typename T, typename From = T>
struct FoldList {
  struct Entry {
    std::int8_t part;
    std::int8_t additions;
    std::int8_t to;
  };

  int entries;
  From* parts[kMaxParts];
  Entry at[kMaxParts];
  T* out;  // null where sums replace parts
};

/// Compiles reduction trees into a program: every part is added at most once and not used
/// afterwards.
class FoldOrder {
 public:
  FoldOrder(std::size_t parts, std::span<const ReductionStep> steps)
      : addends_(parts), is_added_(parts, false) {
    fits_ = parts <= kMaxParts;
    for (const ReductionStep& step : steps) {
      const auto into = static_cast<std::size_t>(step.into);
      const auto from = static_cast<std::size_t>(step.from);
      fits_ = fits_ && !is_added_[into] && !is_added_[from];
      addends_[into].push_back(from);
      is_added_[from] = true;
    }
    for (std::size_t part = 0; fits_ && part < parts; ++part) {
      if (!is_added_[part] && !addends_[part].empty()) {
        visit(part, 1);
        entries_.back().to = static_cast<std::int8_t>(part);
      }
    }
  }

  /// Whether the steps are such trees and the program fits.
  [[nodiscard]] bool fits() const { return fits_; }

  template <typename T, typename From = T>
  [[nodiscard]] FoldList<T, From> list(std::span<const TensorView> parts) const {
    FoldList<T, From> list{};
    list.entries = static_cast<int>(entries_.size());
    for (std::size_t part = 0; part < parts.size(); ++part) {
      list.parts[part] = parts[part].device<From>();
    }
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      list.at[i] = {entries_[i].part, entries_[i].additions, entries_[i].to};
    }
    return list;
  }

 private:
  using Entry = FoldList<float>::Entry;

  /// `depth` sums are pending once the part is loaded.
  void visit(std::size_t part, int depth) {
    fits_ = fits_ && depth <= kMaxWaiting;
    entries_.push_back({static_cast<std::int8_t>(part), 0, kNowhere});
    for (const std::size_t addend : addends_[part]) {
      visit(addend, depth + 1);
      ++entries_.back().additions;
    }
  }

  std::vector<std::vector<std::size_t>> addends_;
  std::vector<bool> is_added_;
  std::vector<Entry> entries_;
  bool fits_ = true;
};

/// One thread for kWidth elements. Loads each part once and stores each sum once.
template <typename T, typename From, int kWidth>
__global__ void __launch_bounds__(kThreads)
    fold_kernel(std::int64_t count, FoldList<T, From> list) {
  using Elements = Chunk<T, kWidth>;
  __shared__ Elements waiting[kMaxWaiting][kThreads];
  const std::int64_t first = thread_number() * kWidth;
  if (first >= count) {
    return;
  }
  int depth = 0;
  for (int entry = 0; entry < list.entries; ++entry) {
    const auto& step = list.at[entry];
    const Chunk<From, kWidth> part = elements_at<kWidth>(list.parts[step.part] + first);
    Elements sum;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sum.at[i] = static_cast<T>(part.at[i]);
    }
    for (int addition = 0; addition < step.additions; ++addition) {
      --depth;
      const Elements other = waiting[depth][threadIdx.x];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        sum.at[i] = other.at[i] + sum.at[i];
      }
    }
    if (step.to == kNowhere) {
      waiting[depth][threadIdx.x] = sum;
      ++depth;
    } else {
      T* to = list.out;
      if constexpr (std::is_same_v<T, From>) {
        to = to == nullptr ? list.parts[step.to] : to;
      }
      store_elements(to + first, sum);
    }
  }
}

/// The "row" is a block of x; the last may be short.
template <typename T>
struct SumOfSquares {
  const T* x;
  std::int64_t count;
  std::int64_t block_elements;
  double* out;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t block) const {
    const std::int64_t begin = block * block_elements;
    const std::int64_t left = count - begin;
    const int elements = static_cast<int>(block_elements < left ? block_elements : left);
    double part = 0.0;
    for (int first = threads.lane * kWide<T>; first < elements; first += kSize * kWide<T>) {
      const Wide<T> chunk = chunk_at(x + begin, elements, first, T{0});
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) {
        const double value = static_cast<double>(chunk.at[i]);
        part = fused(value, value, part);
      }
    }
    const double sum = threads.sum(part);
    if (threads.lane == 0) {
      out[block] = sum;
    }
  }
};

}  // namespace

void fold(Context& context, std::span<const TensorView> parts,
          std::span<const ReductionStep> steps) {
  const FoldOrder order(parts.size(), steps);
  const std::int64_t count = parts[0].count();
  with_floating(parts[0].dtype(), [&]<typename T>(T) {
    if (order.fits()) {
      const FoldList<T> list = order.list<T>(parts);
      const bool is_wide =
          count % kWide<T> == 0 && std::ranges::all_of(parts, [](const TensorView& part) {
            return reinterpret_cast<std::uintptr_t>(part.raw()) % kChunkBytes == 0;
          });
      if (is_wide) {
        launch(context, "fold", grid_of(count / kWide<T>), fold_kernel<T, T, kWide<T>>, count,
               list);
      } else {
        launch(context, "fold", grid_of(count), fold_kernel<T, T, 1>, count, list);
      }
      return;
    }
    for (const ReductionStep& step : steps) {
      map(context, "fold", count, Add{},
          In<T>{parts[static_cast<std::size_t>(step.from)].template device<T>()},
          InOut<T>{parts[static_cast<std::size_t>(step.into)].template device<T>()});
    }
  });
}

void fold_into(Context& context, std::span<const TensorView> parts,
               std::span<const ReductionStep> steps, const TensorView& out) {
  const FoldOrder order(parts.size(), steps);
  require(order.fits(), "a fold of {} parts is more than a kernel takes", parts.size());
  FoldList<float, __nv_bfloat16> list = order.list<float, __nv_bfloat16>(parts);
  list.out = out.device<float>();
  const auto start = [&]<int kWidth>(std::integral_constant<int, kWidth>) {
    launch(context, "fold_into", grid_of(out.count() / kWidth),
           fold_kernel<float, __nv_bfloat16, kWidth>, out.count(), list);
  };
  constexpr int kWidth = kWide<float>;
  const bool is_wide = out.count() % kWidth == 0 && begins_chunk<kWidth>(list.out) &&
                       std::ranges::all_of(parts, [](const TensorView& part) {
                         return begins_chunk<kWidth>(part.device<__nv_bfloat16>());
                       });
  if (is_wide) {
    start(std::integral_constant<int, kWidth>{});
  } else {
    start(std::integral_constant<int, 1>{});
  }
}

void sum_of_squares_blocks(Context& context, const ConstTensorView& x, std::int64_t block_elements,
                           const TensorView& out) {
  require_rows("sum_of_squares_blocks", block_elements, kLongestRow);
  const std::int64_t blocks = out.count();
  with_floating(x.dtype(), [&]<typename T>(T) {
    // The same number of threads for short and long blocks: the order is a function of the block's
    // length.
    launch(context, "sum_of_squares_blocks", {blocks, kThreads, 0},
           row_kernel<kThreads, SumOfSquares<T>>, blocks,
           SumOfSquares<T>{x.device<T>(), x.count(), block_elements, out.device<double>()});
  });
}

}  // namespace strata::ops::cuda
