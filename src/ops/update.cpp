#include "strata/ops/update.hpp"

#include <cmath>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "lanes.hpp"

namespace strata::ops {
namespace {

template <typename T>
struct SgdFactors {
  T rate;
  T momentum;
  T decay;
  T scale;
};

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
struct AdamFactors {
  explicit AdamFactors(const AdamOptions& options)
      : beta1(static_cast<T>(options.beta1)),
        beta2(static_cast<T>(options.beta2)),
        rest1(static_cast<T>(1.0 - options.beta1)),
        rest2(static_cast<T>(1.0 - options.beta2)),
        epsilon(static_cast<T>(options.epsilon)),
        scale(static_cast<T>(options.gradient_scale)) {
    const double step = static_cast<double>(options.step);
    rate = static_cast<T>(options.learning_rate / (1.0 - std::pow(options.beta1, step)));
    root = static_cast<T>(std::sqrt(1.0 - std::pow(options.beta2, step)));
    const bool decoupled = options.decay == DecayKind::kDecoupled;
    decay = static_cast<T>(decoupled ? 0.0 : options.weight_decay);
    keep = static_cast<T>(decoupled ? 1.0 - options.learning_rate * options.weight_decay : 1.0);
  }

  T beta1;
  T beta2;
  T rest1;
  T rest2;
  T epsilon;
  T scale;
  /// The learning rate with m's bias correction in it.
  T rate;
  /// The root of v's bias correction.
  T root;
  T decay;
  /// What decoupled weight decay leaves of a weight.
  T keep;
};

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
  require_count(gradient, weight.dtype(), weight.count(), "sgd's gradient");
  const bool has_momentum = options.momentum != 0.0;
  if (has_momentum) {
    require_count(momentum, weight.dtype(), weight.count(), "sgd's momentum");
  } else {
    require(options.nesterov == Nesterov::kOff, "Nesterov's form without momentum");
  }
  with_floating(weight.dtype(), [&]<typename T>(T) {
    const SgdFactors<T> factor{
        static_cast<T>(options.learning_rate), static_cast<T>(options.momentum),
        static_cast<T>(options.weight_decay), static_cast<T>(options.gradient_scale)};
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
                 const TensorView& m, const TensorView& v, const AdamOptions& options) {
  require_count(gradient, weight.dtype(), weight.count(), "adam's gradient");
  require_count(m, weight.dtype(), weight.count(), "adam's m");
  require_count(v, weight.dtype(), weight.count(), "adam's v");
  require(options.step >= 1, "adam's step {}; 1 is the first", options.step);
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
}

void adagrad_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                    const TensorView& sum, const AdagradOptions& options) {
  require_count(gradient, weight.dtype(), weight.count(), "adagrad's gradient");
  require_count(sum, weight.dtype(), weight.count(), "adagrad's sum");
  with_floating(weight.dtype(), [&]<typename T>(T) {
    T* w = weight.host<T>().data();
    const T* gradients = gradient.host<T>().data();
    T* s = sum.host<T>().data();
    const T rate = static_cast<T>(options.learning_rate);
    const T epsilon = static_cast<T>(options.epsilon);
    const T decay = static_cast<T>(options.weight_decay);
    const T scale = static_cast<T>(options.gradient_scale);
    parallel_for(context, weight.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const T g = gradients[i] * scale + decay * w[i];
        const T total = s[i] + g * g;
        s[i] = total;
        w[i] -= rate * (g / (std::sqrt(total) + epsilon));
      }
    });
  });
}

void average_update(Context& context, const TensorView& weight, const ConstTensorView& term,
                    double keep) {
  require_count(term, weight.dtype(), weight.count(), "a running average's term");
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
