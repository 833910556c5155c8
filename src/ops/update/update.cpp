#include "strata/ops/update.hpp"

#include <cstdint>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/elementwise.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/simd_reduction.hpp"
#include "update/update_formulas.hpp"

namespace strata::ops {
namespace {

/// formula(gradient[i], state[i]...) for each element.
template <typename Formula, typename T, typename... State>
void update_each(Context& context, std::int64_t count, const Formula& formula, const T* gradient,
                 State*... state) {
  for_each_element(context, count, [=](std::int64_t i) { formula(gradient[i], state[i]...); });
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
    require(options.nesterov == Switch::kOff, "Nesterov's form without momentum");
  }
  if (observed.handled_by<cuda::sgd_update>(weight, gradient, momentum, options)) {
    return;
  }
  with_floating(weight.dtype(), [&]<typename T>(T) {
    const SgdFactors<T> factor(options);
    T* w = weight.host<T>().data();
    const T* g = gradient.host<T>().data();
    if (!has_momentum) {
      update_each(context, weight.count(), PlainSgd<T>{factor}, g, w);
      return;
    }
    T* v = momentum.host<T>().data();
    if (options.nesterov == Switch::kOn) {
      update_each(context, weight.count(), MomentumSgd<T, Switch::kOn>{factor}, g, v, w);
    } else {
      update_each(context, weight.count(), MomentumSgd<T, Switch::kOff>{factor}, g, v, w);
    }
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
    update_each(context, weight.count(), Adam<T>{AdamFactors<T>(options)},
                gradient.host<T>().data(), m.host<T>().data(), v.host<T>().data(),
                weight.host<T>().data());
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
    update_each(context, weight.count(), Adagrad<T>{AdagradFactors<T>(options)},
                gradient.host<T>().data(), sum.host<T>().data(), weight.host<T>().data());
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
    update_each(context, weight.count(), Average<T>{static_cast<T>(keep)}, term.host<T>().data(),
                weight.host<T>().data());
  });
}

}  // namespace strata::ops
