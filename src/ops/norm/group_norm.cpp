#include "strata/ops/group_norm.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "onednn/primitive_cache.hpp"
#include "simd/run_sums.hpp"
#include "simd/to_storage.hpp"

namespace strata::ops {
namespace {

void require_shape(const GroupNormShape& shape) {
  require(shape.images >= 0 && shape.pixels >= 1 && shape.channels >= 1 && shape.groups >= 1 &&
              shape.channels % shape.groups == 0,
          "group norm of {} images of {} pixels and {} channels in {} groups", shape.images,
          shape.pixels, shape.channels, shape.groups);
}

/// The mean over a group's channels of their sums over pixels, for every group.
std::vector<double> group_means(const GroupNormShape& shape, const std::vector<double>& sums) {
  const std::int64_t width = shape.channels / shape.groups;
  std::vector<double> means(static_cast<std::size_t>(shape.groups));
  for (std::int64_t c = 0; c < shape.channels; ++c) {
    means[static_cast<std::size_t>(c / width)] += sums[static_cast<std::size_t>(c)];
  }
  for (double& mean : means) {
    mean /= static_cast<double>(shape.pixels * width);
  }
  return means;
}

/// Expands values of an image's groups to its channels.
template <typename C, typename From>
std::vector<C> of_channels(const GroupNormShape& shape, const From* of_groups) {
  const std::int64_t width = shape.channels / shape.groups;
  std::vector<C> values(static_cast<std::size_t>(shape.channels));
  for (std::int64_t c = 0; c < shape.channels; ++c) {
    values[static_cast<std::size_t>(c)] = static_cast<C>(of_groups[c / width]);
  }
  return values;
}

/// to[pixel, c] = term(pixel's first element, c) for the pixels of one image.
template <typename T, typename Function>
void store_image(const GroupNormShape& shape, T* to, const Function& term) {
  for (std::int64_t pixel = 0; pixel < shape.pixels; ++pixel) {
    const std::int64_t first = pixel * shape.channels;
    store_terms(to + first, 0, shape.channels, [=](std::int64_t c) { return term(first + c, c); });
  }
}

template <typename T, typename C>
void forward_image(const GroupNormShape& shape, const T* x, const T* weight, const T* bias,
                   double epsilon, T* y, C* mean, C* rstd) {
  const std::int64_t channels = shape.channels;
  std::vector<double> sums(static_cast<std::size_t>(channels));
  add_row_runs<C>(0, shape.pixels, channels, sums.data(), [=](std::int64_t row, std::int64_t c) {
    return static_cast<C>(x[row * channels + c]);
  });
  const std::vector<double> means = group_means(shape, sums);
  for (std::size_t group = 0; group < means.size(); ++group) {
    mean[group] = static_cast<C>(means[group]);
  }
  const std::vector<C> centres = of_channels<C>(shape, mean);
  const C* const m = centres.data();
  std::fill(sums.begin(), sums.end(), 0.0);
  add_row_runs<C>(0, shape.pixels, channels, sums.data(), [=](std::int64_t row, std::int64_t c) {
    const C difference = static_cast<C>(x[row * channels + c]) - m[c];
    return difference * difference;
  });
  const std::vector<double> variances = group_means(shape, sums);
  for (std::size_t group = 0; group < variances.size(); ++group) {
    rstd[group] = static_cast<C>(1.0 / std::sqrt(variances[group] + epsilon));
  }
  std::vector<C> scale = of_channels<C>(shape, rstd);
  for (std::int64_t c = 0; c < channels; ++c) {
    scale[static_cast<std::size_t>(c)] *= static_cast<C>(weight[c]);
  }
  const C* const s = scale.data();
  store_image(shape, y, [=](std::int64_t i, std::int64_t c) {
    return (static_cast<C>(x[i]) - m[c]) * s[c] + static_cast<C>(bias[c]);
  });
}

/// Adds dy to `sums` and dy xhat to `sums_xhat`, channel by channel, over one image's pixels.
template <typename T, typename C>
void add_image_sums(const GroupNormShape& shape, const T* x, const C* m, const C* r, const T* dy,
                    double* sums, double* sums_xhat) {
  const std::int64_t channels = shape.channels;
  add_row_runs<C>(0, shape.pixels, channels, sums, [=](std::int64_t row, std::int64_t c) {
    return static_cast<C>(dy[row * channels + c]);
  });
  add_row_runs<C>(0, shape.pixels, channels, sums_xhat, [=](std::int64_t row, std::int64_t c) {
    const std::int64_t i = row * channels + c;
    return static_cast<C>(dy[i]) * ((static_cast<C>(x[i]) - m[c]) * r[c]);
  });
}

template <typename T, typename C>
void backward_image(const GroupNormShape& shape, const T* x, const T* weight, const C* mean,
                    const C* rstd, const T* dy, T* dx) {
  const std::vector<C> centres = of_channels<C>(shape, mean);
  const std::vector<C> rstds = of_channels<C>(shape, rstd);
  const C* const m = centres.data();
  const C* const r = rstds.data();
  std::vector<double> sums(static_cast<std::size_t>(shape.channels));
  std::vector<double> sums_xhat(sums.size());
  add_image_sums(shape, x, m, r, dy, sums.data(), sums_xhat.data());
  for (std::size_t c = 0; c < sums.size(); ++c) {
    sums[c] *= static_cast<double>(static_cast<C>(weight[c]));
    sums_xhat[c] *= static_cast<double>(static_cast<C>(weight[c]));
  }
  const std::vector<C> levels = of_channels<C>(shape, group_means(shape, sums).data());
  const std::vector<C> slopes = of_channels<C>(shape, group_means(shape, sums_xhat).data());
  const C* const l = levels.data();
  const C* const k = slopes.data();
  store_image(shape, dx, [=](std::int64_t i, std::int64_t c) {
    const C xhat = (static_cast<C>(x[i]) - m[c]) * r[c];
    return r[c] * (static_cast<C>(dy[i]) * static_cast<C>(weight[c]) - l[c] - xhat * k[c]);
  });
}

void require_statistics(const GroupNormShape& shape, DType dtype, const ConstTensorView& mean,
                        const ConstTensorView& rstd) {
  require_count(mean, compute_dtype(dtype), shape.images * shape.groups, "group norm's mean");
  require_count(rstd, compute_dtype(dtype), shape.images * shape.groups, "group norm's rstd");
}

}  // namespace

void group_norm_forward(Context& context, const GroupNormShape& shape, const ConstTensorView& x,
                        const ConstTensorView& weight, const ConstTensorView& bias, double epsilon,
                        const TensorView& y, const TensorView& mean, const TensorView& rstd) {
  const Observed observed(context, "group_norm_forward", x, weight, bias, y, mean, rstd);
  require_shape(shape);
  require_count(x, x.dtype(), shape.tensor().count(), "group norm's x");
  require_count(weight, x.dtype(), shape.channels, "group norm's weight");
  require_count(bias, x.dtype(), shape.channels, "group norm's bias");
  require_count(y, x.dtype(), x.count(), "group norm's y");
  require(x.empty() || x.raw() != y.raw(), "group norm in place");
  require_statistics(shape, x.dtype(), mean, rstd);
  if (observed.handled_by<cuda::group_norm_forward>(shape, x, weight, bias, epsilon, y, mean,
                                                    rstd)) {
    return;
  }
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = x.host<T>().data();
    const T* const g = weight.host<T>().data();
    const T* const b = bias.host<T>().data();
    T* const to = y.host<T>().data();
    C* const means = mean.host<C>().data();
    C* const rstds = rstd.host<C>().data();
    const std::int64_t size = shape.pixels * shape.channels;
    parallel_for(context, shape.images, 1, [=](std::int64_t image, std::int64_t) {
      forward_image(shape, from + image * size, g, b, epsilon, to + image * size,
                    means + image * shape.groups, rstds + image * shape.groups);
    });
  });
}

void group_norm_backward_input(Context& context, const GroupNormShape& shape,
                               const ConstTensorView& x, const ConstTensorView& weight,
                               const ConstTensorView& mean, const ConstTensorView& rstd,
                               const ConstTensorView& dy, const TensorView& dx) {
  const Observed observed(context, "group_norm_backward_input", x, weight, mean, rstd, dy, dx);
  require_shape(shape);
  require_count(x, x.dtype(), shape.tensor().count(), "group norm's x");
  require_count(weight, x.dtype(), shape.channels, "group norm's weight");
  require_count(dy, x.dtype(), x.count(), "group norm's dy");
  require_count(dx, x.dtype(), x.count(), "group norm's dx");
  require_statistics(shape, x.dtype(), mean, rstd);
  if (observed.handled_by<cuda::group_norm_backward_input>(shape, x, weight, mean, rstd, dy, dx)) {
    return;
  }
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = x.host<T>().data();
    const T* const g = weight.host<T>().data();
    const T* const incoming = dy.host<T>().data();
    T* const to = dx.host<T>().data();
    const C* const means = mean.host<C>().data();
    const C* const rstds = rstd.host<C>().data();
    const std::int64_t size = shape.pixels * shape.channels;
    parallel_for(context, shape.images, 1, [=](std::int64_t image, std::int64_t) {
      backward_image(shape, from + image * size, g, means + image * shape.groups,
                     rstds + image * shape.groups, incoming + image * size, to + image * size);
    });
  });
}

void group_norm_backward_weight(Context& context, const GroupNormShape& shape,
                                const ConstTensorView& x, const ConstTensorView& mean,
                                const ConstTensorView& rstd, const ConstTensorView& dy,
                                const TensorView& dweight, const TensorView& dbias,
                                Accumulate accumulate) {
  const Observed observed(context, "group_norm_backward_weight", x, mean, rstd, dy, dweight, dbias);
  require_shape(shape);
  require_count(x, x.dtype(), shape.tensor().count(), "group norm's x");
  require_count(dy, x.dtype(), x.count(), "group norm's dy");
  require_count(dweight, compute_dtype(x.dtype()), shape.channels, "group norm's dweight");
  require_count(dbias, compute_dtype(x.dtype()), shape.channels, "group norm's dbias");
  require_statistics(shape, x.dtype(), mean, rstd);
  if (observed.handled_by<cuda::group_norm_backward_weight>(shape, x, mean, rstd, dy, dweight,
                                                            dbias, accumulate)) {
    return;
  }
  with_stored(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    const T* const from = x.host<T>().data();
    const T* const incoming = dy.host<T>().data();
    const C* const means = mean.host<C>().data();
    const C* const rstds = rstd.host<C>().data();
    const std::int64_t size = shape.pixels * shape.channels;
    const std::int64_t channels = shape.channels;
    const std::int64_t parts = shape.images * 2 * channels;
    auto* const sums = reinterpret_cast<double*>(
        context.primitives().shared(parts * static_cast<std::int64_t>(sizeof(double))));
    std::fill_n(sums, parts, 0.0);
    parallel_for(context, shape.images, 1, [=](std::int64_t image, std::int64_t) {
      const std::vector<C> centres = of_channels<C>(shape, means + image * shape.groups);
      const std::vector<C> of_rstd = of_channels<C>(shape, rstds + image * shape.groups);
      double* const own = sums + image * 2 * channels;
      add_image_sums(shape, from + image * size, centres.data(), of_rstd.data(),
                     incoming + image * size, own, own + channels);
    });
    const auto finish = [=](const double* first, C* to) {
      for (std::int64_t c = 0; c < channels; ++c) {
        double sum = 0.0;
        for (std::int64_t image = 0; image < shape.images; ++image) {
          sum += first[image * 2 * channels + c];
        }
        const C rounded_sum = static_cast<C>(sum);
        to[c] = accumulate == Accumulate::kAdd ? to[c] + rounded_sum : rounded_sum;
      }
    };
    finish(sums, dbias.host<C>().data());
    finish(sums + channels, dweight.host<C>().data());
  });
}

}  // namespace strata::ops
