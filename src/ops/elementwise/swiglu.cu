#include "strata/ops/activation.hpp"

#include "cuda/map.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

struct Forward {
  template <typename T>
  __device__ void operator()(T gate, T up, T& y) const {
    using C = Compute<T>;
    const C x = value_of(gate);
    const C sigmoid = C{1} / (C{1} + exponential(-x));
    y = to_storage<T>(x * sigmoid * value_of(up));
  }
};

struct Backward {
  template <typename T>
  __device__ void operator()(T gate, T up, T dy, T& dgate, T& dup) const {
    using C = Compute<T>;
    const C x = value_of(gate);
    const C d = value_of(dy);
    const C sigmoid = C{1} / (C{1} + exponential(-x));
    const C slope = sigmoid * (C{1} + x * (C{1} - sigmoid));
    dgate = to_storage<T>(d * value_of(up) * slope);
    dup = to_storage<T>(d * (x * sigmoid));
  }
};

}  // namespace

void swiglu_forward(Context& context, const ConstTensorView& gate, const ConstTensorView& up,
                    const TensorView& y) {
  with_device_type(gate.dtype(), [&]<typename T>(T) {
    map(context, "swiglu_forward", gate.count(), Forward{}, In<T>{gate.device<T>()},
        In<T>{up.device<T>()}, Out<T>{y.device<T>()});
  });
}

void swiglu_backward(Context& context, const ConstTensorView& gate, const ConstTensorView& up,
                     const ConstTensorView& dy, const TensorView& dgate, const TensorView& dup) {
  with_device_type(gate.dtype(), [&]<typename T>(T) {
    map(context, "swiglu_backward", gate.count(), Backward{}, In<T>{gate.device<T>()},
        In<T>{up.device<T>()}, In<T>{dy.device<T>()}, Out<T>{dgate.device<T>()},
        Out<T>{dup.device<T>()});
  });
}

}  // namespace strata::ops::cuda
