#include "strata/core/error.hpp"
#include "strata/ops/update.hpp"

#include "cuda/map.hpp"
#include "cuda/ops.hpp"
#include "update/update_formulas.hpp"

namespace strata::ops::cuda {
namespace {

/// An update of the last operand, which is then rounded.
template <typename Update>
struct Rounded {
  Update update;

  template <typename T>
  __device__ void operator()(__nv_bfloat16& rounded, T gradient, T& m, T& v, T& w) const {
    update(gradient, m, v, w);
    rounded = to_storage<__nv_bfloat16>(static_cast<float>(w));
  }
};

}  // namespace

void sgd_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                const TensorView& momentum, const SgdOptions& options) {
  with_floating(weight.dtype(), [&]<typename T>(T) {
    const SgdFactors<T> factor(options);
    const InOut<T> w{weight.device<T>()};
    const In<T> g{gradient.device<T>()};
    if (options.momentum == 0.0) {
      map(context, "sgd_update", weight.count(), PlainSgd<T>{factor}, g, w);
      return;
    }
    const InOut<T> v{momentum.device<T>()};
    if (options.nesterov == Switch::kOn) {
      map(context, "sgd_update", weight.count(), MomentumSgd<T, Switch::kOn>{factor}, g, v, w);
    } else {
      map(context, "sgd_update", weight.count(), MomentumSgd<T, Switch::kOff>{factor}, g, v, w);
    }
  });
}

void adam_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                 const TensorView& m, const TensorView& v, const AdamOptions& options,
                 const TensorView& rounded) {
  with_floating(weight.dtype(), [&]<typename T>(T) {
    const auto run = [&](const auto& update, const auto&... first) {
      map(context, "adam_update", weight.count(), update, first..., In<T>{gradient.device<T>()},
          InOut<T>{m.device<T>()}, InOut<T>{v.device<T>()}, InOut<T>{weight.device<T>()});
    };
    const Adam<T> update{AdamFactors<T>(options)};
    if (rounded.empty()) {
      run(update);
      return;
    }
    require(rounded.dtype() == DType::kBfloat16 && std::is_same_v<T, float>,
            "adam's {} weights, rounded to {}", name_of(weight.dtype()), name_of(rounded.dtype()));
    if constexpr (std::is_same_v<T, float>) {
      run(Rounded<Adam<T>>{update}, Out<__nv_bfloat16>{rounded.device<__nv_bfloat16>()});
    }
  });
}

void adagrad_update(Context& context, const TensorView& weight, const ConstTensorView& gradient,
                    const TensorView& sum, const AdagradOptions& options) {
  with_floating(weight.dtype(), [&]<typename T>(T) {
    map(context, "adagrad_update", weight.count(), Adagrad<T>{AdagradFactors<T>(options)},
        In<T>{gradient.device<T>()}, InOut<T>{sum.device<T>()}, InOut<T>{weight.device<T>()});
  });
}

void average_update(Context& context, const TensorView& weight, const ConstTensorView& term,
                    double keep) {
  with_floating(weight.dtype(), [&]<typename T>(T) {
    map(context, "average_update", weight.count(), Average<T>{static_cast<T>(keep)},
        In<T>{term.device<T>()}, InOut<T>{weight.device<T>()});
  });
}

}  // namespace strata::ops::cuda
