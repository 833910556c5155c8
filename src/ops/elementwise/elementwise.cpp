#include "strata/ops/elementwise.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "simd/simd_reduction.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

constexpr std::int64_t kByteGrain = 4 * kElementGrain;

template <typename T>
void add_elements(Context& context, const ConstTensorView& x, const TensorView& y) {
  const T* from = x.host<T>().data();
  T* into = y.host<T>().data();
  for_each_element(context, x.count(), [=](std::int64_t i) {
    into[i] = to_storage<T>(static_cast<Compute<T>>(into[i]) + static_cast<Compute<T>>(from[i]));
  });
}

/// Rounds to odd: truncates, and sets the last bit if inexact, so that a second rounding gives the
/// double's correctly rounded value.
float rounded_to_odd(double value) {
  const auto near = static_cast<float>(value);
  const auto exact = static_cast<double>(near);
  const auto bits = std::bit_cast<std::uint32_t>(near);
  const std::uint32_t cut = bits - (std::fabs(exact) > std::fabs(value) ? 1U : 0U);
  // NaNs compare unequal and stay as they are.
  const bool inexact = exact < value || exact > value;
  return std::bit_cast<float>(inexact ? cut | 1U : bits);
}

template <typename To, typename From>
To converted(From value) {
  if constexpr (std::is_same_v<To, BFloat16> && std::is_same_v<From, double>) {
    return BFloat16(rounded_to_odd(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return BFloat16(static_cast<float>(value));
  } else {
    return static_cast<To>(static_cast<Compute<From>>(value));
  }
}

template <typename From, typename To>
void convert_elements(Context& context, const ConstTensorView& x, const TensorView& y) {
  const From* from = x.host<From>().data();
  To* to = y.host<To>().data();
  for_each_element(context, x.count(), [=](std::int64_t i) { to[i] = converted<To>(from[i]); });
}

/// Inputs of a row of add_bias_residual(); bias and residual may be null.
template <typename From, typename T>
struct BiasResidualRow {
  const From* sum = nullptr;
  const T* bias = nullptr;
  const T* residual = nullptr;
  T* y = nullptr;

  void run(std::int64_t n) const {
    using C = Compute<T>;
    const From* const s = sum;
    const T* const b = bias;
    const T* const r = residual;
    T* const to = y;
    // NOLINTNEXTLINE(bugprone-branch-clone): the branches differ by the residual.
    if (b != nullptr && r != nullptr) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) {
        to[i] = to_storage<T>(static_cast<C>(s[i]) + static_cast<C>(b[i]) + static_cast<C>(r[i]));
      }
    } else if (b != nullptr || r != nullptr) {
      const T* const other = b != nullptr ? b : r;
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) {
        to[i] = to_storage<T>(static_cast<C>(s[i]) + static_cast<C>(other[i]));
      }
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) {
        to[i] = to_storage<T>(static_cast<C>(s[i]));
      }
    }
  }
};

}  // namespace

void fill_zero(Context& context, const TensorView& x) {
  const Observed observed(context, "fill_zero", x);
  if (observed.handled_by<cuda::fill_zero>(x)) {
    return;
  }
  require_memory_space(context, x);
  parallel_for(context, x.bytes(), kByteGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memset(x.raw() + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

void copy(Context& context, const ConstTensorView& x, const TensorView& y) {
  const Observed observed(context, "copy", x, y);
  require_count(y, x.dtype(), x.count(), "copy's y");
  if (observed.handled_by<cuda::copy>(x, y)) {
    return;
  }
  require_memory_space(context, x);
  require_memory_space(context, y);
  if (x.raw() == y.raw()) {
    return;
  }
  parallel_for(context, x.bytes(), kByteGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(y.raw() + begin, x.raw() + begin, static_cast<std::size_t>(end - begin));
  });
}

void add(Context& context, const ConstTensorView& x, const TensorView& y) {
  const Observed observed(context, "add", x, y);
  require_count(y, x.dtype(), x.count(), "add's y");
  if (observed.handled_by<cuda::add>(x, y)) {
    return;
  }
  with_stored(x.dtype(), [&]<typename T>(T) { add_elements<T>(context, x, y); });
}

void scaled(Context& context, double factor, const ConstTensorView& x, const TensorView& y,
            Accumulate accumulate) {
  const Observed observed(context, "scaled", x, y);
  require_count(y, x.dtype(), x.count(), "scaled's y");
  if (observed.handled_by<cuda::scaled>(factor, x, y, accumulate)) {
    return;
  }
  const bool adds = accumulate == Accumulate::kAdd;
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* from = x.host<T>().data();
    T* into = y.host<T>().data();
    const C times = static_cast<C>(factor);
    for_each_element(context, x.count(), [=](std::int64_t i) {
      into[i] =
          to_storage<T>(times * static_cast<C>(from[i]) + (adds ? static_cast<C>(into[i]) : C{0}));
    });
  });
}

void convert(Context& context, const ConstTensorView& x, const TensorView& y) {
  const Observed observed(context, "convert", x, y);
  require_count(y, y.dtype(), x.count(), "convert's y");
  if (x.dtype() == y.dtype()) {
    copy(context, x, y);
    return;
  }
  if (observed.handled_by<cuda::convert>(x, y)) {
    return;
  }
  with_stored(x.dtype(), [&]<typename From>(From) {
    with_stored(y.dtype(), [&]<typename To>(To) { convert_elements<From, To>(context, x, y); });
  });
}

void add_bias_residual(Context& context, const ConstTensorView& sum, const ConstTensorView& bias,
                       const ConstTensorView& residual, const TensorView& y) {
  const Observed observed(context, "add_bias_residual", sum, bias, residual, y);
  const auto [rows, n] = rows_of(y.shape());
  require_bias_residual(sum, bias, residual, y);
  if (observed.handled_by<cuda::add_bias_residual>(sum, bias, residual, y)) {
    return;
  }
  with_stored(y.dtype(), [&, rows = rows, n = n]<typename T>(T) {
    const T* b = host_or_null<T>(bias);
    const T* r = host_or_null<T>(residual);
    T* to = y.host<T>().data();
    with_elements<T>(sum, [&]<typename From>(const From* from) {
      parallel_for_rows(context, rows, n, [=](std::int64_t row) {
        const T* residual_row = r == nullptr ? nullptr : r + row * n;
        BiasResidualRow<From, T>{from + row * n, b, residual_row, to + row * n}.run(n);
      });
    });
  });
}

}  // namespace strata::ops
