#include "strata/ops/embedding.hpp"

#include "checks.hpp"
#include "cuda_kernel.hpp"
#include "cuda_ops.hpp"

namespace strata::ops::cuda {
namespace {

/// A thread an element of y, which is of T or of what T is computed in.
template <typename T, typename To>
__global__ void forward_kernel(std::int64_t count, std::int64_t columns, const std::int64_t* ids,
                               std::int64_t first_id, std::int64_t table_rows, const T* table,
                               bool adds, To* y) {
  using C = Compute<T>;
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  const std::int64_t id = ids[i / columns] - first_id;
  if (id >= 0 && id < table_rows) {
    const C value = value_of(table[id * columns + i % columns]);
    y[i] = stored<To>((adds ? value_of(y[i]) : C{0}) + value);
  } else if (!adds) {
    y[i] = stored<To>(C{0});
  }
}

template <typename From, typename T>
__global__ void positions_kernel(std::int64_t count, std::int64_t columns, const From* x,
                                 const T* table, PositionRows positions, T* y) {
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  const std::int64_t token = (positions.first_row + i / columns) % positions.tokens;
  y[i] = stored<T>(value_of(x[i]) +
                   value_of(table[(token + positions.offset) * columns + i % columns]));
}

/// A thread an element of a sequence.
template <typename T>
__global__ void positions_backward_kernel(std::int64_t sequences, std::int64_t elements,
                                          const T* dy, bool adds, Compute<T>* dtable) {
  using C = Compute<T>;
  const std::int64_t i = thread_number();
  if (i >= elements) {
    return;
  }
  C sum{0};
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    sum += value_of(dy[sequence * elements + i]);
  }
  dtable[i] = adds ? dtable[i] + sum : sum;
}

}  // namespace

void embedding_forward(Context& context, const ConstTensorView& ids, const ConstTensorView& table,
                       std::int64_t first_id, const TensorView& y, Accumulate accumulate) {
  const std::int64_t columns = rows_of(y.shape()).columns;
  with_device_type(table.dtype(), [&]<typename T>(T) {
    const auto run = [&]<typename To>(To* to) {
      launch(context, "embedding_forward", grid_of(y.count()), forward_kernel<T, To>, y.count(),
             columns, ids.device<std::int64_t>(), first_id, table.shape()[0], table.device<T>(),
             accumulate == Accumulate::kAdd, to);
    };
    if (y.dtype() == table.dtype()) {
      run(y.device<T>());
    } else {
      run(y.device<Compute<T>>());
    }
  });
}

void add_positions(Context& context, const ConstTensorView& x, const ConstTensorView& table,
                   const PositionRows& rows, const TensorView& y) {
  const std::int64_t columns = rows_of(y.shape()).columns;
  with_device_type(y.dtype(), [&]<typename T>(T) {
    const auto run = [&]<typename From>(const From* from) {
      launch(context, "add_positions", grid_of(y.count()), positions_kernel<From, T>, y.count(),
             columns, from, table.device<T>(), rows, y.device<T>());
    };
    if (x.dtype() == y.dtype()) {
      run(x.device<T>());
    } else {
      run(x.device<Compute<T>>());
    }
  });
}

void positions_backward(Context& context, const ConstTensorView& dy, std::int64_t tokens,
                        const TensorView& dtable, Accumulate accumulate) {
  const Rows shape = rows_of(dy.shape());
  const std::int64_t elements = tokens * shape.columns;
  with_device_type(dy.dtype(), [&]<typename T>(T) {
    launch(context, "positions_backward", grid_of(elements), positions_backward_kernel<T>,
           shape.rows / tokens, elements, dy.device<T>(), accumulate == Accumulate::kAdd,
           dtable.device<Compute<T>>());
  });
}

}  // namespace strata::ops::cuda
