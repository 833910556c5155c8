#include "strata/core/dtype.hpp"
#include "strata/ops/activation.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/math.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {

void swiglu_forward(Context& context, const ConstTensorView& gate, const ConstTensorView& up,
                    const TensorView& y) {
  const Observed observed(context, "swiglu_forward", gate, up, y);
  require_like(up, gate.dtype(), gate.shape(), "swiglu's up");
  require_like(y, gate.dtype(), gate.shape(), "swiglu's y");
  if (observed.handled_by<cuda::swiglu_forward>(gate, up, y)) {
    return;
  }
  with_stored(gate.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* g = gate.host<T>().data();
    const T* u = up.host<T>().data();
    T* to = y.host<T>().data();
    for_each_element(context, gate.count(), [=](std::int64_t i) {
      const C x = static_cast<C>(g[i]);
      to[i] = to_storage<T>(x * fast_sigmoid(x) * static_cast<C>(u[i]));
    });
  });
}

void swiglu_backward(Context& context, const ConstTensorView& gate, const ConstTensorView& up,
                     const ConstTensorView& dy, const TensorView& dgate, const TensorView& dup) {
  const Observed observed(context, "swiglu_backward", gate, up, dy, dgate, dup);
  require_like(up, gate.dtype(), gate.shape(), "swiglu's up");
  require_like(dy, gate.dtype(), gate.shape(), "swiglu's dy");
  require_like(dgate, gate.dtype(), gate.shape(), "swiglu's dgate");
  require_like(dup, gate.dtype(), gate.shape(), "swiglu's dup");
  if (observed.handled_by<cuda::swiglu_backward>(gate, up, dy, dgate, dup)) {
    return;
  }
  with_stored(gate.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* g = gate.host<T>().data();
    const T* u = up.host<T>().data();
    const T* incoming = dy.host<T>().data();
    T* to_gate = dgate.host<T>().data();
    T* to_up = dup.host<T>().data();
    for_each_element(context, gate.count(), [=](std::int64_t i) {
      const C x = static_cast<C>(g[i]);
      const C d = static_cast<C>(incoming[i]);
      const C sigmoid = fast_sigmoid(x);
      const C slope = sigmoid * (C{1} + x * (C{1} - sigmoid));
      const C through_up = d * static_cast<C>(u[i]);
      to_gate[i] = to_storage<T>(through_up * slope);
      to_up[i] = to_storage<T>(d * (x * sigmoid));
    });
  });
}

}  // namespace strata::ops
