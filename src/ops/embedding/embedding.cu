#include "strata/ops/embedding.hpp"

#include "checks.hpp"
#include "cuda/chunks.hpp"
#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

/// One thread for kWidth elements of a row of y, whose type is T or its compute type.
template <int kWidth, typename T, typename To>
__global__ void forward_kernel(std::int64_t count, std::int64_t columns, const std::int64_t* ids,
                               std::int64_t first_id, std::int64_t table_rows, const T* table,
                               bool adds, To* y) {
  using C = Compute<T>;
  const std::int64_t first = thread_number() * kWidth;
  if (first >= count) {
    return;
  }
  const std::int64_t id = ids[first / columns] - first_id;
  const bool is_inside = id >= 0 && id < table_rows;
  if (adds && !is_inside) {
    return;
  }
  Chunk<T, kWidth> values{};
  if (is_inside) {
    values = elements_at<kWidth>(table + id * columns + first % columns);
  }
  Chunk<To, kWidth> to{};
  if (adds) {
    to = elements_at<kWidth>(y + first);
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    to.at[i] = to_storage<To>((adds ? value_of(to.at[i]) : C{0}) + value_of(values.at[i]));
  }
  store_elements(y + first, to);
}

/// One thread for kWidth elements of a row.
template <int kWidth, typename From, typename T>
__global__ void positions_kernel(std::int64_t count, std::int64_t columns, const From* x,
                                 const T* table, PositionRows positions, T* y) {
  const std::int64_t first = thread_number() * kWidth;
  if (first >= count) {
    return;
  }
  const std::int64_t token = (positions.first_row + first / columns) % positions.tokens;
  const Chunk<From, kWidth> from = elements_at<kWidth>(x + first);
  const Chunk<T, kWidth> values =
      elements_at<kWidth>(table + (token + positions.offset) * columns + first % columns);
  Chunk<T, kWidth> to;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    to.at[i] = to_storage<T>(value_of(from.at[i]) + value_of(values.at[i]));
  }
  store_elements(y + first, to);
}

/// One thread for kWidth elements of a sequence.
template <int kWidth, typename T>
__global__ void positions_backward_kernel(std::int64_t sequences, std::int64_t elements,
                                          const T* dy, bool adds, Compute<T>* dtable) {
  using C = Compute<T>;
  const std::int64_t first = thread_number() * kWidth;
  if (first >= elements) {
    return;
  }
  C sums[kWidth] = {};
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    const Chunk<T, kWidth> terms = elements_at<kWidth>(dy + sequence * elements + first);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sums[i] += value_of(terms.at[i]);
    }
  }
  Chunk<C, kWidth> to{};
  if (adds) {
    to = elements_at<kWidth>(dtable + first);
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    to.at[i] = adds ? to.at[i] + sums[i] : sums[i];
  }
  store_elements(dtable + first, to);
}

}  // namespace

void embedding_forward(Context& context, const ConstTensorView& ids, const ConstTensorView& table,
                       std::int64_t first_id, const TensorView& y, Accumulate accumulate) {
  const std::int64_t columns = rows_of(y.shape()).columns;
  with_device_type(table.dtype(), [&]<typename T>(T) {
    with_device_elements<T>(y, [&]<typename To>(To* to) {
      const T* const from = table.device<T>();
      with_width(
          columns,
          [&](auto width) {
            launch(context, "embedding_forward", grid_of(y.count() / width),
                   forward_kernel<width(), T, To>, y.count(), columns, ids.device<std::int64_t>(),
                   first_id, table.shape()[0], from, accumulate == Accumulate::kAdd, to);
          },
          from, to);
    });
  });
}

void add_positions(Context& context, const ConstTensorView& x, const ConstTensorView& table,
                   const PositionRows& rows, const TensorView& y) {
  const std::int64_t columns = rows_of(y.shape()).columns;
  with_device_type(y.dtype(), [&]<typename T>(T) {
    with_device_elements<T>(x, [&]<typename From>(const From* from) {
      const T* const added = table.device<T>();
      T* const to = y.device<T>();
      with_width(
          columns,
          [&](auto width) {
            launch(context, "add_positions", grid_of(y.count() / width),
                   positions_kernel<width(), From, T>, y.count(), columns, from, added, rows, to);
          },
          from, added, to);
    });
  });
}

void positions_backward(Context& context, const ConstTensorView& dy, std::int64_t tokens,
                        const TensorView& dtable, Accumulate accumulate) {
  const Rows shape = rows_of(dy.shape());
  const std::int64_t elements = tokens * shape.columns;
  with_device_type(dy.dtype(), [&]<typename T>(T) {
    const T* const from = dy.device<T>();
    Compute<T>* const to = dtable.device<Compute<T>>();
    with_width(
        elements,
        [&](auto width) {
          launch(context, "positions_backward", grid_of(elements / width),
                 positions_backward_kernel<width(), T>, shape.rows / tokens, elements, from,
                 accumulate == Accumulate::kAdd, to);
        },
        from, to);
  });
}

}  // namespace strata::ops::cuda
