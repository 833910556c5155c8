#include "strata/ops/activation.hpp"

#include "cuda/map.hpp"
#include "cuda/ops.hpp"

namespace strata::ops::cuda {
namespace {

// The formulas of activation.cpp. Every one propagates NaNs, so that they reach the loss.

template <typename C>
__device__ C sigmoid(C x) {
  return C{1} / (C{1} + exponential(-x));
}

/// 2 sqrt(2 / pi) and the factor of the cube.
constexpr double kGeluSlope = 2.0 * 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

/// The factor of x in gelu(x) = x sigmoid(2 u).
template <typename C>
__device__ C gelu_gate(C x) {
  return sigmoid(x *
                 fused(x * x, static_cast<C>(kGeluSlope * kGeluCubic), static_cast<C>(kGeluSlope)));
}

struct Relu {
  template <typename C>
  __device__ static C forward(C x) {
    return x < C{0} ? C{0} : x;
  }
  template <typename C>
  __device__ static C backward(C y, C d) {
    return y <= C{0} ? C{0} : d;
  }
};

struct Gelu {
  template <typename C>
  __device__ static C forward(C x) {
    return x * gelu_gate(x);
  }
  template <typename C>
  __device__ static C slope(C x) {
    const C gate = gelu_gate(x);
    const C u_slope =
        fused(x * x, static_cast<C>(3.0 * kGeluCubic * kGeluSlope), static_cast<C>(kGeluSlope));
    return fused(x * u_slope, fused(-gate, gate, gate), gate);
  }
  template <typename C>
  __device__ static C backward(C x, C d) {
    return slope(x) * d;
  }
};

/// x Phi(x) of the normal distribution.
struct GeluErf {
  static constexpr double kRootOfHalf = 0.70710678118654752440;
  static constexpr double kDensityAtZero = 0.39894228040143267794;

  __device__ static float below(float x) {
    return 0.5F * erfcf(x * -static_cast<float>(kRootOfHalf));
  }
  __device__ static double below(double x) { return 0.5 * erfc(x * -kRootOfHalf); }
  template <typename C>
  __device__ static C forward(C x) {
    return x * below(x);
  }
  template <typename C>
  __device__ static C backward(C x, C d) {
    const C density = static_cast<C>(kDensityAtZero) * exponential(C{-0.5} * x * x);
    return fused(x, density, below(x)) * d;
  }
};

struct Silu {
  template <typename C>
  __device__ static C forward(C x) {
    return x * sigmoid(x);
  }
  template <typename C>
  __device__ static C slope(C x) {
    const C y = sigmoid(x);
    return y * (C{1} + x * (C{1} - y));
  }
};

struct Tanh {
  __device__ static float forward(float x) { return tanhf(x); }
  __device__ static double forward(double x) { return tanh(x); }
  template <typename C>
  __device__ static C backward(C y, C d) {
    return (C{1} - y * y) * d;
  }
};

struct Sigmoid {
  template <typename C>
  __device__ static C forward(C x) {
    return sigmoid(x);
  }
  template <typename C>
  __device__ static C backward(C y, C d) {
    return y * (C{1} - y) * d;
  }
};

template <typename Formula>
struct Forward {
  template <typename T>
  __device__ void operator()(T x, T& y) const {
    y = to_storage<T>(Formula::forward(value_of(x)));
  }
};

template <typename Formula>
struct Backward {
  template <typename T>
  __device__ void operator()(T read, T dy, T& dx) const {
    dx = to_storage<T>(Formula::backward(value_of(read), value_of(dy)));
  }
};

template <typename Formula>
struct GatedForward {
  template <typename T>
  __device__ void operator()(T gate, T up, T& y) const {
    y = to_storage<T>(Formula::forward(value_of(gate)) * value_of(up));
  }
};

template <typename Formula>
struct GatedBackward {
  template <typename T>
  __device__ void operator()(T gate, T up, T dy, T& dgate, T& dup) const {
    const auto x = value_of(gate);
    const auto d = value_of(dy);
    dgate = to_storage<T>(d * value_of(up) * Formula::slope(x));
    dup = to_storage<T>(d * Formula::forward(x));
  }
};

template <typename Function>
void with_gate(Gate gate, const Function& function) {
  if (gate == Gate::kSilu) {
    function(Silu{});
  } else {
    function(Gelu{});
  }
}

template <typename Function>
void with_formula(Activation activation, const Function& function) {
  switch (activation) {
    case Activation::kNone:
      return;
    case Activation::kRelu:
      return function(Relu{});
    case Activation::kGelu:
      return function(Gelu{});
    case Activation::kGeluErf:
      return function(GeluErf{});
    case Activation::kTanh:
      return function(Tanh{});
    case Activation::kSigmoid:
      return function(Sigmoid{});
  }
}

}  // namespace

void activation_forward(Context& context, Activation activation, const ConstTensorView& x,
                        const TensorView& y) {
  with_device_type(x.dtype(), [&]<typename T>(T) {
    with_formula(activation, [&]<typename Formula>(Formula) {
      map(context, "activation_forward", x.count(), Forward<Formula>{}, In<T>{x.device<T>()},
          Out<T>{y.device<T>()});
    });
  });
}

void activation_backward(Context& context, Activation activation, const ConstTensorView& x,
                         const ConstTensorView& y, const ConstTensorView& dy,
                         const TensorView& dx) {
  const ConstTensorView& read = gradient_reads_x(activation) ? x : y;
  with_device_type(dy.dtype(), [&]<typename T>(T) {
    with_formula(activation, [&]<typename Formula>(Formula) {
      map(context, "activation_backward", dy.count(), Backward<Formula>{}, In<T>{read.device<T>()},
          In<T>{dy.device<T>()}, Out<T>{dx.device<T>()});
    });
  });
}

void gated_forward(Context& context, Gate function, const ConstTensorView& gate,
                   const ConstTensorView& up, const TensorView& y) {
  with_device_type(gate.dtype(), [&]<typename T>(T) {
    with_gate(function, [&]<typename Formula>(Formula) {
      map(context, "gated_forward", gate.count(), GatedForward<Formula>{}, In<T>{gate.device<T>()},
          In<T>{up.device<T>()}, Out<T>{y.device<T>()});
    });
  });
}

void gated_backward(Context& context, Gate function, const ConstTensorView& gate,
                    const ConstTensorView& up, const ConstTensorView& dy, const TensorView& dgate,
                    const TensorView& dup) {
  with_device_type(gate.dtype(), [&]<typename T>(T) {
    with_gate(function, [&]<typename Formula>(Formula) {
      map(context, "gated_backward", gate.count(), GatedBackward<Formula>{},
          In<T>{gate.device<T>()}, In<T>{up.device<T>()}, In<T>{dy.device<T>()},
          Out<T>{dgate.device<T>()}, Out<T>{dup.device<T>()});
    });
  });
}

}  // namespace strata::ops::cuda
