#include "strata/ops/convolution.hpp"

#include <algorithm>
#include <array>

#include "strata/core/dtype.hpp"
#include "strata/core/error.hpp"
#include "strata/ops/parallel_for.hpp"

#include "checks.hpp"
#include "convolution/double_convolution.hpp"
#include "cuda/ops.hpp"
#include "observed.hpp"
#include "onednn/primitive_cache.hpp"
#include "simd/relu_run.hpp"
#include "simd/simd_reduction.hpp"
#include "windows.hpp"

namespace strata::ops {
namespace {

void require_shape(const ConvolutionShape& shape) {
  require_axis(shape.height, "a convolution's height");
  require_axis(shape.width, "a convolution's width");
  require(shape.groups >= 1 && shape.in_channels >= 1 && shape.out_channels >= 1 &&
              shape.in_channels % shape.groups == 0 && shape.out_channels % shape.groups == 0,
          "a convolution of {} to {} channels in {} groups", shape.in_channels, shape.out_channels,
          shape.groups);
}

OperationWork convolution_work(std::string_view name, const ConvolutionShape& shape,
                               const ConstTensorView& from, const ConstTensorView& with,
                               const ConstTensorView& to) {
  const std::int64_t pixels = shape.images * shape.height.out * shape.width.out;
  const std::int64_t window =
      shape.in_channels / shape.groups * shape.height.window * shape.width.window;
  return {.name = name,
          .dtype = from.dtype(),
          .extents = {pixels, shape.out_channels, window},
          .flops = 2.0 * static_cast<double>(pixels) * static_cast<double>(shape.out_channels) *
                   static_cast<double>(window),
          .bytes = Observed::bytes_of(from) + Observed::bytes_of(with) + Observed::bytes_of(to)};
}

/// A result has the operands' dtype, or float32 where they are bfloat16.
DType result_dtype(const ConstTensorView& result, DType operands) {
  const bool widened = operands == DType::kBfloat16 && result.dtype() == DType::kFloat32;
  return widened ? DType::kFloat32 : operands;
}

std::int64_t output_pixels(const ConvolutionShape& shape) {
  return shape.height.out * shape.width.out;
}

/// oneDNN takes non-const pointers for inputs too.
std::byte* address(const ConstTensorView& tensor) {
  return const_cast<std::byte*>(tensor.raw());
}

/// Images of one library call; the last call may have fewer. One large image at a time keeps its
/// tensors in the cache. A function of the shape alone.
std::int64_t images_a_call(const ConvolutionShape& shape) {
  constexpr std::int64_t kPixels = 64;
  const std::int64_t pixels = output_pixels(shape);
  return std::min(shape.images, (kPixels + pixels - 1) / pixels);
}

/// A pass whose images are independent: forward or input gradient.
struct ImagePass {
  ConvolutionStep pack = ConvolutionStep::kPackForward;
  ConvolutionStep step = ConvolutionStep::kForward;
  const std::byte* from = nullptr;
  std::byte* weight = nullptr;
  std::byte* to = nullptr;
  std::byte* bias = nullptr;
  std::int64_t from_bytes = 0;   ///< of one image
  std::int64_t to_elements = 0;  ///< of one image
  Activation activation = Activation::kNone;
};

void run_images(Context& context, ConvolutionKey key, const ImagePass& pass) {
  PrimitiveCache& primitives = context.primitives();
  const std::int64_t images = key.shape.images;
  const std::int64_t grain = images_a_call(key.shape);
  key.packed_images = grain;
  key.shape.images = grain;
  key.has_bias = pass.bias != nullptr;
  key.step = pass.pack;
  Primitive& pack = primitives.primitive(key);
  key.step = pass.step;
  Primitive& whole = primitives.primitive(key);
  key.shape.images = images % grain == 0 ? grain : images % grain;
  Primitive& last = primitives.primitive(key);
  std::byte* const packed = primitives.shared(pack.operand_bytes(1));
  primitives.run(pack, 0, std::array{pass.weight, packed});
  const std::int64_t to_bytes = pass.to_elements * size_bytes(key.result);
  parallel_for(context, images, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    std::byte* const to = pass.to + begin * to_bytes;
    const std::array operands{const_cast<std::byte*>(pass.from + begin * pass.from_bytes), packed,
                              to, pass.bias};
    primitives.run(end == images ? last : whole, thread, operands);
    if (pass.activation == Activation::kRelu) {
      with_stored(key.result, [&]<typename T>(T) {
        relu_run(reinterpret_cast<T*>(to), (end - begin) * pass.to_elements);
      });
    }
  });
  primitives.check();
}

/// Images whose weight gradients one library call sums: at most kMost groups of equal size (the
/// last may be smaller), with enough pixels to outweigh adding the groups' sums.
std::int64_t images_a_sum(const ConvolutionShape& shape) {
  constexpr std::int64_t kMost = 8;
  constexpr std::int64_t kPixels = 512;
  const std::int64_t pixels = output_pixels(shape);
  const std::int64_t least = (kPixels + pixels - 1) / pixels;
  return std::min(shape.images, std::max((shape.images + kMost - 1) / kMost, least));
}

/// The weight gradient of float32 or bfloat16 tensors, group of images by group.
class WeightSum {
 public:
  WeightSum(Context& context, ConvolutionKey key) : context_(context), images_(key.shape.images) {
    PrimitiveCache& primitives = context.primitives();
    grain_ = images_a_sum(key.shape);
    groups_ = (images_ + grain_ - 1) / grain_;
    key.packed_images = grain_;
    key.shape.images = grain_;
    key.step = ConvolutionStep::kUnpackWeight;
    unpack_ = &primitives.primitive(key);
    key.step = ConvolutionStep::kBackwardWeight;
    whole_ = &primitives.primitive(key);
    key.shape.images = images_ - (groups_ - 1) * grain_;
    last_ = &primitives.primitive(key);
    x_bytes_ = key.shape.input().tail().count() * size_bytes(key.operands);
    dy_bytes_ = key.shape.output().tail().count() * size_bytes(key.operands);
  }

  void run(std::byte* x, std::byte* dy, float* dw, Accumulate accumulate) {
    PrimitiveCache& primitives = context_.primitives();
    const std::int64_t part_bytes = rounded_up(unpack_->operand_bytes(0));
    const std::int64_t stored_bytes =
        accumulate == Accumulate::kAdd ? unpack_->operand_bytes(1) : 0;
    const std::int64_t at_once = groups_at_once(part_bytes);
    std::byte* const sum = primitives.shared((at_once + 1) * part_bytes + stored_bytes);
    for (std::int64_t first = 0; first < groups_; first += at_once) {
      const std::int64_t count = std::min(at_once, groups_ - first);
      std::byte* const parts = first == 0 ? sum : sum + part_bytes;
      parallel_for(context_, count, 1, [&](std::int64_t i, std::int64_t, int thread) {
        const std::int64_t group = first + i;
        const std::array operands{x + group * grain_ * x_bytes_, dy + group * grain_ * dy_bytes_,
                                  parts + i * part_bytes};
        primitives.run(group == groups_ - 1 ? *last_ : *whole_, thread, operands);
      });
      primitives.check();
      const std::int64_t own = first == 0 ? 1 : 0;
      add(parts + own * part_bytes, part_bytes, count - own, part_bytes, sum);
    }
    auto* const to = reinterpret_cast<std::byte*>(dw);
    std::byte* const stored =
        accumulate == Accumulate::kAdd ? sum + (at_once + 1) * part_bytes : to;
    primitives.run(*unpack_, 0, std::array{sum, stored});
    primitives.check();
    if (accumulate == Accumulate::kAdd) {
      add(stored, 0, 1, stored_bytes, to);
    }
  }

 private:
  static std::int64_t rounded_up(std::int64_t bytes) {
    constexpr std::int64_t kLine = 64;
    return (bytes + kLine - 1) / kLine * kLine;
  }

  /// Group sums that are in memory at a time, as many as a bound allows, so that threads rarely
  /// wait for each other. One thread adds each group's sum while it is in the cache, always in the
  /// same order.
  [[nodiscard]] std::int64_t groups_at_once(std::int64_t part_bytes) const {
    constexpr std::int64_t kBytes = 16 << 20;
    const std::int64_t threads = context_.threads();
    return threads == 1 ? 1 : std::min(groups_, std::max(threads, kBytes / part_bytes));
  }

  /// sum += part 0, sum += part 1, ...; parts are `stride` bytes apart.
  void add(const std::byte* parts, std::int64_t stride, std::int64_t count, std::int64_t bytes,
           std::byte* sum) {
    auto* const to = reinterpret_cast<float*>(sum);
    parallel_for(context_, bytes / static_cast<std::int64_t>(sizeof(float)), kElementGrain,
                 [=](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t part = 0; part < count; ++part) {
                     const auto* const from = reinterpret_cast<const float*>(parts + part * stride);
#pragma omp simd
                     for (std::int64_t i = begin; i < end; ++i) {
                       to[i] += from[i];
                     }
                   }
                 });
  }

  Context& context_;
  std::int64_t images_;
  std::int64_t grain_;
  std::int64_t groups_;
  std::int64_t x_bytes_;
  std::int64_t dy_bytes_;
  Primitive* unpack_;
  Primitive* whole_;
  Primitive* last_;
};

}  // namespace

void convolution_forward(Context& context, const ConvolutionShape& shape, const ConstTensorView& x,
                         const ConstTensorView& w, const TensorView& y,
                         const ConvolutionOptions& options) {
  const Observed observed(context,
                          [&] { return convolution_work("convolution_forward", shape, x, w, y); });
  require_shape(shape);
  const DType dtype = x.dtype();
  const DType result = result_dtype(y, dtype);
  const bool plain = options.bias.empty() && options.activation == Activation::kNone;
  require_count(x, dtype, shape.input().count(), "a convolution's x");
  require_count(w, dtype, shape.weight().count(), "a convolution's weight");
  require_count(y, result, shape.output().count(), "a convolution's y");
  require(options.bias.empty() ||
              (options.bias.dtype() == dtype && options.bias.count() == shape.out_channels),
          "a convolution's bias is {} {}, {} of {} was expected", name_of(options.bias.dtype()),
          options.bias.shape().text(), shape.out_channels, name_of(dtype));
  require(options.activation == Activation::kNone || options.activation == Activation::kRelu,
          "a convolution with {}", name_of(options.activation));
  require(result == dtype || plain, "a convolution to float32 with a bias or {}",
          name_of(options.activation));
  for (const ConstTensorView& tensor : {x, w, ConstTensorView(y), options.bias}) {
    require_memory_space(context, tensor);
  }
  if (shape.images == 0) {
    return;
  }
  if (observed.handled_by<cuda::convolution_forward>(shape, x, w, y, options)) {
    return;
  }
  if (dtype == DType::kFloat64) {
    double* const to = y.host<double>().data();
    double_forward(context, shape, x.host<double>().data(), w.host<double>().data(),
                   host_or_null<double>(options.bias), to);
    if (options.activation == Activation::kRelu) {
      relu_run(to, y.count());
    }
    return;
  }
  ImagePass pass;
  pass.from = x.raw();
  pass.weight = address(w);
  pass.to = y.raw();
  pass.bias = address(options.bias);
  pass.from_bytes = x.bytes() / shape.images;
  pass.to_elements = y.count() / shape.images;
  pass.activation = options.activation;
  run_images(context, {.operands = dtype, .result = result, .shape = shape}, pass);
}

void convolution_backward_input(Context& context, const ConvolutionShape& shape,
                                const ConstTensorView& dy, const ConstTensorView& w,
                                const TensorView& dx) {
  const Observed observed(
      context, [&] { return convolution_work("convolution_backward_input", shape, dy, w, dx); });
  require_shape(shape);
  const DType dtype = dy.dtype();
  const DType result = result_dtype(dx, dtype);
  require_count(dy, dtype, shape.output().count(), "a convolution's dy");
  require_count(w, dtype, shape.weight().count(), "a convolution's weight");
  require_count(dx, result, shape.input().count(), "a convolution's dx");
  for (const ConstTensorView& tensor : {dy, w, ConstTensorView(dx)}) {
    require_memory_space(context, tensor);
  }
  if (shape.images == 0) {
    return;
  }
  if (observed.handled_by<cuda::convolution_backward_input>(shape, dy, w, dx)) {
    return;
  }
  if (dtype == DType::kFloat64) {
    double_backward_input(context, shape, dy.host<double>().data(), w.host<double>().data(),
                          dx.host<double>().data());
    return;
  }
  ImagePass pass;
  pass.pack = ConvolutionStep::kPackBackwardInput;
  pass.step = ConvolutionStep::kBackwardInput;
  pass.from = dy.raw();
  pass.weight = address(w);
  pass.to = dx.raw();
  pass.from_bytes = dy.bytes() / shape.images;
  pass.to_elements = dx.count() / shape.images;
  run_images(context, {.operands = dtype, .result = result, .shape = shape}, pass);
}

void convolution_backward_weight(Context& context, const ConvolutionShape& shape,
                                 const ConstTensorView& x, const ConstTensorView& dy,
                                 const TensorView& dw, Accumulate accumulate) {
  const Observed observed(
      context, [&] { return convolution_work("convolution_backward_weight", shape, x, dy, dw); });
  require_shape(shape);
  const DType dtype = x.dtype();
  require(shape.images >= 1, "a weight gradient of {} images", shape.images);
  require_count(x, dtype, shape.input().count(), "a convolution's x");
  require_count(dy, dtype, shape.output().count(), "a convolution's dy");
  require_count(dw, compute_dtype(dtype), shape.weight().count(), "a convolution's dw");
  if (observed.handled_by<cuda::convolution_backward_weight>(shape, x, dy, dw, accumulate)) {
    return;
  }
  for (const ConstTensorView& tensor : {x, dy, ConstTensorView(dw)}) {
    require_memory_space(context, tensor);
  }
  if (dtype == DType::kFloat64) {
    double_backward_weight(context, shape, x.host<double>().data(), dy.host<double>().data(),
                           dw.host<double>().data(), accumulate);
    return;
  }
  WeightSum(context, {.operands = dtype, .result = DType::kFloat32, .shape = shape})
      .run(address(x), address(dy), dw.host<float>().data(), accumulate);
}

}  // namespace strata::ops
