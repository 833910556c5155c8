#include "strata/ops/elementwise.hpp"

#include <cstring>

#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "lanes.hpp"

namespace strata::ops {
namespace {

constexpr std::int64_t kByteGrain = 4 * kElementGrain;

void require_host(const ConstTensorView& x) {
  require(x.place() == Place::kHost, "a CPU operation was given a tensor in {} memory",
          name_of(x.place()));
}

}  // namespace

void fill_zero(Context& context, const TensorView& x) {
  require_host(x);
  parallel_for(context, x.bytes(), kByteGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memset(x.raw() + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

void copy(Context& context, const ConstTensorView& x, const TensorView& y) {
  require_count(y, x.dtype(), x.count(), "copy's y");
  require_host(x);
  require_host(y);
  if (x.raw() == y.raw()) {
    return;
  }
  parallel_for(context, x.bytes(), kByteGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(y.raw() + begin, x.raw() + begin, static_cast<std::size_t>(end - begin));
  });
}

void scale(Context& context, double factor, const TensorView& x) {
  with_floating(x.dtype(), [&]<typename T>(T) {
    T* elements = x.host<T>().data();
    const T by = static_cast<T>(factor);
    parallel_for(context, x.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        elements[i] *= by;
      }
    });
  });
}

void add(Context& context, const ConstTensorView& x, const TensorView& y) {
  require_count(y, x.dtype(), x.count(), "add's y");
  with_floating(x.dtype(), [&]<typename T>(T) {
    const T* from = x.host<T>().data();
    T* into = y.host<T>().data();
    parallel_for(context, x.count(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        into[i] += from[i];
      }
    });
  });
}

}  // namespace strata::ops
