#include "strata/ops/activation.hpp"

#include <numbers>

#include "strata/core/error.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/math.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

// gelu(x) = 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), which does not cancel for negative x;
// u = sqrt(2 / pi) (x + 0.044715 x^3), and -2 u / ln(2) is x (kGeluFirst + kGeluThird x^2).
constexpr double kGeluSlope = 2.0 * 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;
constexpr double kGeluFirst = -kGeluSlope * std::numbers::log2e;
constexpr double kGeluThird = kGeluFirst * kGeluCubic;

// Every function below propagates NaNs, so that they reach the loss.

template <typename T>
T relu(T x) {
  return x < T{0} ? T{0} : x;
}

/// GELU's divisor of x; `square` is x * x.
template <typename T>
[[gnu::always_inline]] inline T gelu_divisor(T x, T square) {
  return one_and_exp2(x * fused(square, static_cast<T>(kGeluThird), static_cast<T>(kGeluFirst)));
}

template <typename T>
[[gnu::always_inline]] inline T gelu(T x) {
  return x / gelu_divisor(x, x * x);
}

template <typename T>
[[gnu::always_inline]] inline T gelu_slope(T x) {
  const T square = x * x;
  const T gate = T{1} / gelu_divisor(x, square);
  const T u_slope =
      fused(square, static_cast<T>(3.0 * kGeluCubic * kGeluSlope), static_cast<T>(kGeluSlope));
  return fused(x * u_slope, fused(-gate, gate, gate), gate);
}

template <typename T>
[[gnu::always_inline]] inline T gelu_erf(T x) {
  return x * normal_at(x).below;
}

template <typename T>
[[gnu::always_inline]] inline T gelu_erf_slope(T x) {
  const NormalAt<T> at = normal_at(x);
  return fused(x, at.density, at.below);
}

template <typename T>
[[gnu::always_inline]] inline T silu(T x) {
  return x * fast_sigmoid(x);
}

template <typename T>
[[gnu::always_inline]] inline T silu_slope(T x) {
  const T sigmoid = fast_sigmoid(x);
  return sigmoid * (T{1} + x * (T{1} - sigmoid));
}

/// Calls task(f, f') with a gate's function.
template <typename T, typename Task>
void with_gate(Gate function, const Task& task) {
  if (function == Gate::kSilu) {
    task([](T x) { return silu(x); }, [](T x) { return silu_slope(x); });
  } else {
    task([](T x) { return gelu(x); }, [](T x) { return gelu_slope(x); });
  }
}

template <typename T, typename Function>
void map(Context& context, const ConstTensorView& x, const TensorView& y,
         const Function& function) {
  const T* from = x.host<T>().data();
  T* to = y.host<T>().data();
  parallel_for(context, x.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    store_terms(to, begin, end,
                [=](std::int64_t i) { return function(static_cast<Compute<T>>(from[i])); });
  });
}

template <typename T, typename Slope>
void map_slope(Context& context, const ConstTensorView& at, const ConstTensorView& dy,
               const TensorView& dx, const Slope& slope) {
  const T* from = at.host<T>().data();
  const T* incoming = dy.host<T>().data();
  T* outgoing = dx.host<T>().data();
  parallel_for(context, dy.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    store_terms(outgoing, begin, end, [=](std::int64_t i) {
      return slope(static_cast<Compute<T>>(from[i]), static_cast<Compute<T>>(incoming[i]));
    });
  });
}

}  // namespace

void activation_forward(Context& context, Activation activation, const ConstTensorView& x,
                        const TensorView& y) {
  const Observed observed(context, "activation_forward", x, y);
  require_like(y, x.dtype(), x.shape(), "an activation's y");
  if (activation == Activation::kNone) {
    copy(context, x, y);
    return;
  }
  if (observed.handled_by<cuda::activation_forward>(activation, x, y)) {
    return;
  }
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    switch (activation) {
      case Activation::kNone:
        break;
      case Activation::kRelu:
        map<T>(context, x, y, [](C value) { return relu(value); });
        break;
      case Activation::kGelu:
        map<T>(context, x, y, [](C value) { return gelu(value); });
        break;
      case Activation::kGeluErf:
        map<T>(context, x, y, [](C value) { return gelu_erf(value); });
        break;
      case Activation::kTanh:
        map<T>(context, x, y, [](C value) { return fast_tanh(value); });
        break;
      case Activation::kSigmoid:
        map<T>(context, x, y, [](C value) { return fast_sigmoid(value); });
        break;
    }
  });
}

void activation_backward(Context& context, Activation activation, const ConstTensorView& x,
                         const ConstTensorView& y, const ConstTensorView& dy,
                         const TensorView& dx) {
  const Observed observed(context, "activation_backward", x, y, dy, dx);
  require_like(dx, dy.dtype(), dy.shape(), "an activation's dx");
  if (activation == Activation::kNone) {
    copy(context, dy, dx);
    return;
  }
  const ConstTensorView& read = gradient_reads_x(activation) ? x : y;
  require_like(read, dy.dtype(), dy.shape(), "what an activation's gradient reads");
  if (observed.handled_by<cuda::activation_backward>(activation, x, y, dy, dx)) {
    return;
  }
  with_stored(dy.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    switch (activation) {
      case Activation::kNone:
        break;
      case Activation::kRelu:
        map_slope<T>(context, read, dy, dx, [](C out, C d) { return out <= C{0} ? C{0} : d; });
        break;
      case Activation::kGelu:
        map_slope<T>(context, read, dy, dx, [](C in, C d) { return gelu_slope(in) * d; });
        break;
      case Activation::kGeluErf:
        map_slope<T>(context, read, dy, dx, [](C in, C d) { return gelu_erf_slope(in) * d; });
        break;
      case Activation::kTanh:
        map_slope<T>(context, read, dy, dx, [](C out, C d) { return (C{1} - out * out) * d; });
        break;
      case Activation::kSigmoid:
        map_slope<T>(context, read, dy, dx, [](C out, C d) { return out * (C{1} - out) * d; });
        break;
    }
  });
}

void gated_forward(Context& context, Gate function, const ConstTensorView& gate,
                   const ConstTensorView& up, const TensorView& y) {
  const Observed observed(context, "gated_forward", gate, up, y);
  require_like(up, gate.dtype(), gate.shape(), "a gated unit's up");
  require_like(y, gate.dtype(), gate.shape(), "a gated unit's y");
  if (observed.handled_by<cuda::gated_forward>(function, gate, up, y)) {
    return;
  }
  with_stored(gate.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* g = gate.host<T>().data();
    const T* u = up.host<T>().data();
    T* to = y.host<T>().data();
    with_gate<C>(function, [&](auto f, auto /*slope*/) {
      for_each_element(context, gate.count(), [=](std::int64_t i) {
        to[i] = to_storage<T>(f(static_cast<C>(g[i])) * static_cast<C>(u[i]));
      });
    });
  });
}

void gated_backward(Context& context, Gate function, const ConstTensorView& gate,
                    const ConstTensorView& up, const ConstTensorView& dy, const TensorView& dgate,
                    const TensorView& dup) {
  const Observed observed(context, "gated_backward", gate, up, dy, dgate, dup);
  require_like(up, gate.dtype(), gate.shape(), "a gated unit's up");
  require_like(dy, gate.dtype(), gate.shape(), "a gated unit's dy");
  require_like(dgate, gate.dtype(), gate.shape(), "a gated unit's dgate");
  require_like(dup, gate.dtype(), gate.shape(), "a gated unit's dup");
  if (observed.handled_by<cuda::gated_backward>(function, gate, up, dy, dgate, dup)) {
    return;
  }
  with_stored(gate.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* g = gate.host<T>().data();
    const T* u = up.host<T>().data();
    const T* incoming = dy.host<T>().data();
    T* to_gate = dgate.host<T>().data();
    T* to_up = dup.host<T>().data();
    with_gate<C>(function, [&](auto f, auto slope) {
      for_each_element(context, gate.count(), [=](std::int64_t i) {
        const C x = static_cast<C>(g[i]);
        const C d = static_cast<C>(incoming[i]);
        const C through_up = d * static_cast<C>(u[i]);
        to_gate[i] = to_storage<T>(through_up * slope(x));
        to_up[i] = to_storage<T>(d * f(x));
      });
    });
  });
}

}  // namespace strata::ops
