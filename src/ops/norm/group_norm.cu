#include "strata/ops/group_norm.hpp"

#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"
#include "cuda/rows.hpp"

namespace strata::ops::cuda {
namespace {

/// Index arithmetic of one group of one image: pixels, and the group's channels within each.
struct Group {
  __device__ Group(const GroupNormShape& shape, std::int64_t index)
      : width(shape.channels / shape.groups),
        count(shape.pixels * width),
        channels(shape.channels),
        first_channel(index % shape.groups * width),
        first(index / shape.groups * shape.pixels * shape.channels + first_channel) {}

  __device__ std::int64_t element(std::int64_t i) const {
    return first + i / width * channels + i % width;
  }
  __device__ std::int64_t channel(std::int64_t i) const { return first_channel + i % width; }

  std::int64_t width;
  std::int64_t count;
  std::int64_t channels;
  std::int64_t first_channel;
  std::int64_t first;
};

/// The "row" is a group of an image.
template <typename T>
struct Forward {
  GroupNormShape shape;
  const T* x;
  const T* weight;
  const T* bias;
  double epsilon;
  T* y;
  Compute<T>* means;
  Compute<T>* rstds;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    using C = Compute<T>;
    const Group group(shape, index);
    const double count = static_cast<double>(group.count);
    // A thread may have many elements of a group.
    double part = 0.0;
    for (std::int64_t i = threads.lane; i < group.count; i += kSize) {
      part += static_cast<double>(value_of(x[group.element(i)]));
    }
    const C mean = static_cast<C>(threads.sum(part) / count);
    part = 0.0;
    for (std::int64_t i = threads.lane; i < group.count; i += kSize) {
      const auto difference = static_cast<double>(value_of(x[group.element(i)]) - mean);
      part = fused(difference, difference, part);
    }
    const double variance = threads.sum(part) / count;
    const C rstd = static_cast<C>(1.0 / sqrt(variance + epsilon));
    if (threads.lane == 0) {
      means[index] = mean;
      rstds[index] = rstd;
    }
    for (std::int64_t i = threads.lane; i < group.count; i += kSize) {
      const std::int64_t at = group.element(i);
      const std::int64_t channel = group.channel(i);
      y[at] = to_storage<T>((value_of(x[at]) - mean) * (rstd * value_of(weight[channel])) +
                            value_of(bias[channel]));
    }
  }
};

template <typename T>
struct BackwardInput {
  GroupNormShape shape;
  const T* x;
  const T* weight;
  const Compute<T>* means;
  const Compute<T>* rstds;
  const T* dy;
  T* dx;

  template <int kSize>
  __device__ void operator()(const RowThreads<kSize>& threads, std::int64_t index) const {
    using C = Compute<T>;
    const Group group(shape, index);
    const double count = static_cast<double>(group.count);
    const C mean = means[index];
    const C rstd = rstds[index];
    double part = 0.0;
    double part_xhat = 0.0;
    for (std::int64_t i = threads.lane; i < group.count; i += kSize) {
      const std::int64_t at = group.element(i);
      const C g = value_of(dy[at]) * value_of(weight[group.channel(i)]);
      part += static_cast<double>(g);
      part_xhat = fused(static_cast<double>(g),
                        static_cast<double>((value_of(x[at]) - mean) * rstd), part_xhat);
    }
    const C level = static_cast<C>(threads.sum(part) / count);
    const C slope = static_cast<C>(threads.sum(part_xhat) / count);
    for (std::int64_t i = threads.lane; i < group.count; i += kSize) {
      const std::int64_t at = group.element(i);
      const C g = value_of(dy[at]) * value_of(weight[group.channel(i)]);
      const C xhat = (value_of(x[at]) - mean) * rstd;
      dx[at] = to_storage<T>(rstd * (g - level - xhat * slope));
    }
  }
};

/// Sums of an image's channel over its pixels.
struct ChannelSums {
  double dweight;
  double dbias;
};

/// Columns of a block, and threads for the pixels of each column.
constexpr int kColumns = 32;
constexpr int kPixelThreads = kThreads / kColumns;

/// One block for each tile of channels of one image: a thread sums every kPixelThreads-th pixel,
/// and the first thread of a column adds the partial sums in order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    weight_kernel(GroupNormShape shape, std::int64_t tiles, const T* x, const Compute<T>* means,
                  const Compute<T>* rstds, const T* dy, ChannelSums* sums) {
  using C = Compute<T>;
  __shared__ ChannelSums of_thread[kPixelThreads][kColumns];
  const std::int64_t image = blockIdx.x / tiles;
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int first = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t channel = blockIdx.x % tiles * kColumns + column;
  double dweight = 0.0;
  double dbias = 0.0;
  if (channel < shape.channels) {
    const std::int64_t group = image * shape.groups + channel / (shape.channels / shape.groups);
    const C mean = means[group];
    const C rstd = rstds[group];
    for (std::int64_t pixel = first; pixel < shape.pixels; pixel += kPixelThreads) {
      const std::int64_t at = (image * shape.pixels + pixel) * shape.channels + channel;
      const auto d = static_cast<double>(value_of(dy[at]));
      dbias += d;
      dweight = fused(d, static_cast<double>((value_of(x[at]) - mean) * rstd), dweight);
    }
  }
  of_thread[first][column] = {dweight, dbias};
  __syncthreads();
  if (first == 0 && channel < shape.channels) {
    ChannelSums sum = of_thread[0][column];
    for (int thread = 1; thread < kPixelThreads; ++thread) {
      sum.dweight += of_thread[thread][column].dweight;
      sum.dbias += of_thread[thread][column].dbias;
    }
    sums[image * shape.channels + channel] = sum;
  }
}

/// One thread for each channel: adds the images in order.
template <typename C>
__global__ void add_images_kernel(std::int64_t images, std::int64_t channels,
                                  const ChannelSums* sums, bool adds, C* dweight, C* dbias) {
  const std::int64_t channel = thread_number();
  if (channel >= channels) {
    return;
  }
  ChannelSums total{0.0, 0.0};
  for (std::int64_t image = 0; image < images; ++image) {
    total.dweight += sums[image * channels + channel].dweight;
    total.dbias += sums[image * channels + channel].dbias;
  }
  const C weight = static_cast<C>(total.dweight);
  const C bias = static_cast<C>(total.dbias);
  dweight[channel] = adds ? dweight[channel] + weight : weight;
  dbias[channel] = adds ? dbias[channel] + bias : bias;
}

std::int64_t group_size(const GroupNormShape& shape) {
  return shape.pixels * (shape.channels / shape.groups);
}

}  // namespace

void group_norm_forward(Context& context, const GroupNormShape& shape, const ConstTensorView& x,
                        const ConstTensorView& weight, const ConstTensorView& bias, double epsilon,
                        const TensorView& y, const TensorView& mean, const TensorView& rstd) {
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    for_each_row(context, "group_norm_forward", shape.images * shape.groups, group_size(shape),
                 Forward<T>{shape, x.device<T>(), weight.device<T>(), bias.device<T>(), epsilon,
                            y.device<T>(), mean.device<C>(), rstd.device<C>()});
  });
}

void group_norm_backward_input(Context& context, const GroupNormShape& shape,
                               const ConstTensorView& x, const ConstTensorView& weight,
                               const ConstTensorView& mean, const ConstTensorView& rstd,
                               const ConstTensorView& dy, const TensorView& dx) {
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    for_each_row(context, "group_norm_backward_input", shape.images * shape.groups,
                 group_size(shape),
                 BackwardInput<T>{shape, x.device<T>(), weight.device<T>(), mean.device<C>(),
                                  rstd.device<C>(), dy.device<T>(), dx.device<T>()});
  });
}

void group_norm_backward_weight(Context& context, const GroupNormShape& shape,
                                const ConstTensorView& x, const ConstTensorView& mean,
                                const ConstTensorView& rstd, const ConstTensorView& dy,
                                const TensorView& dweight, const TensorView& dbias,
                                Accumulate accumulate) {
  const std::int64_t tiles = (shape.channels + kColumns - 1) / kColumns;
  auto* const sums = scratch_of<ChannelSums>(context, shape.images * shape.channels);
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    launch(context, "group_norm_backward_weight", {shape.images * tiles, kThreads, 0},
           weight_kernel<T>, shape, tiles, x.device<T>(), mean.device<C>(), rstd.device<C>(),
           dy.device<T>(), sums);
    launch(context, "group norm's images", grid_of(shape.channels), add_images_kernel<C>,
           shape.images, shape.channels, sums, accumulate == Accumulate::kAdd, dweight.device<C>(),
           dbias.device<C>());
  });
}

}  // namespace strata::ops::cuda
