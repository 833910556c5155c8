#include "strata/ops/update.hpp"

#include <cmath>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/convert.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/simd_reduction.hpp"
#include "update/update_factors.hpp"

namespace strata::ops {
namespace {

template <Nesterov kNesterov, typename T>
void momentum_chunk(T* w, const T* gradient, T* velocity, const SgdFactors<T>& factor,
                    std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const T g = gradient[i] * factor.scale + factor.decay * w[i];
    const T v = factor.momentum * velocity[i] + g;
    velocity[i] = v;
    w[i] -= factor.rate * (kNesterov == Nesterov::kOn ? g + factor.momentum * v : v);
  }
}

template <typename T>
void plain_chunk(T* w, const T* gradient, const SgdFactors<T>& factor, std::int64_t begin,
                 std::int64_t end) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    w[i] -= factor.rate * (gradient[i] * factor.scale + factor.decay * w[i]);
  }
}

template <typename T>
void adam_chunk(T* w, const T* gradient, T* m, T* v, const AdamFactors<T>& factor,
                std::int64_t begin, std::int64_t end) {
  const AdamFactors<T> f = factor;
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const T g = gradient[i] * f.scale + f.decay * w[i];
    const T first = f.beta1 * m[i] + f.rest1 * g;
    const T second = f.beta2 * v[i] + f.rest2 * (g * g);
    m[i] = first;
    v[i] = second;
    w[i] = f.keep * w[i] - f.rate * (first / (std::sqrt(second) / f.root + f.epsilon));
  }
}

}  // namespace

void sgd_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                const TensorView& momentum, const SgdOptions& options) {
  const Observed observed(context, "sgd_update", weight, gradient, momentum);
  require_count(gradient, weight.dtype(), weight.count(), "sgd's gradient");
  const bool has_momentum = options.momentum != 0.0;
  if (has_momentum) {
    require_count(momentum, weight.dtype(), weight.count(), "sgd's momentum");
  } else {
    require(options.nesterov == Nesterov::kOff, "Nesterov's form without momentum");
  }
  if (observed.handled_by<cuda::sgd_update>(weight, gradient, momentum, options)) {
    return;
  }
  with_floating(weight.dtype(), [&]<typename T>(T) {
    const SgdFactors<T> factor(options);
    T* w = weight.host<T>().data();
    const T* g = gradient.host<T>().data();
    T* v = has_momentum ? momentum.host<T>().data() : nullptr;
    parallel_for(context, weight.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
      if (!has_momentum) {
        plain_chunk(w, g, factor, begin, end);
      } else if (options.nesterov == Nesterov::kOn) {
        momentum_chunk<Nesterov::kOn>(w, g, v, factor, begin, end);
      } else {
        momentum_chunk<Nesterov::kOff>(w, g, v, factor, begin, end);
      }
    });
  });
}

void adam_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                 const TensorView& m, const TensorView& v, const AdamOptions& options,
                 const TensorView& rounded) {
  const Observed observed(context, "adam_update", weight, gradient, m, v, rounded);
  require_count(gradient, weight.dtype(), weight.count(), "adam's gradient");
  require_count(m, weight.dtype(), weight.count(), "adam's m");
  require_count(v, weight.dtype(), weight.count(), "adam's v");
  require(options.step >= 1, "adam's step {}; 1 is the first", options.step);
  if (!rounded.empty()) {
    require_count(rounded, rounded.dtype(), weight.count(), "adam's rounded weights");
  }
  if (observed.handled_by<cuda::adam_update>(weight, gradient, m, v, options, rounded)) {
    return;
  }
  with_floating(weight.dtype(), [&]<typename T>(T) {
    const AdamFactors<T> factor(options);
    T* w = weight.host<T>().data();
    const T* g = gradient.host<T>().data();
    T* first = m.host<T>().data();
    T* second = v.host<T>().data();
    parallel_for(context, weight.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
      adam_chunk(w, g, first, second, factor, begin, end);
    });
  });
  if (!rounded.empty()) {
    convert(context, weight, rounded);
  }
}

void adagrad_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                    const TensorView& sum, const AdagradOptions& options) {
  const Observed observed(context, "adagrad_update", weight, gradient, sum);
  require_count(gradient, weight.dtype(), weight.count(), "adagrad's gradient");
  require_count(sum, weight.dtype(), weight.count(), "adagrad's sum");
  if (observed.handled_by<cuda::adagrad_update>(weight, gradient, sum, options)) {
    return;
  }
  with_floating(weight.dtype(), [&]<typename T>(T) {
    T* w = weight.host<T>().data();
    const T* gradients = gradient.host<T>().data();
    T* s = sum.host<T>().data();
    const AdagradFactors<T> f(options);
    parallel_for(context, weight.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const T g = gradients[i] * f.scale + f.decay * w[i];
        const T total = s[i] + g * g;
        s[i] = total;
        w[i] -= f.rate * (g / (std::sqrt(total) + f.epsilon));
      }
    });
  });
}

void average_update(Context& context, const TensorView& weight, const ConstTensorView& term,
                    double keep) {
  const Observed observed(context, "average_update", weight, term);
  require_count(term, weight.dtype(), weight.count(), "a running average's term");
  if (observed.handled_by<cuda::average_update>(weight, term, keep)) {
    return;
  }
  with_floating(weight.dtype(), [&]<typename T>(T) {
    T* w = weight.host<T>().data();
    const T* terms = term.host<T>().data();
    const T kept = static_cast<T>(keep);
    parallel_for(context, weight.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        w[i] = kept * w[i] + terms[i];
      }
    });
  });
}

}  // namespace strata::ops
