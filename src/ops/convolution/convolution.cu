#include "strata/ops/convolution.hpp"

#include "convolution/cuda_windows.hpp"
#include "convolution/cudnn_convolution.hpp"
#include "cuda/bias.hpp"
#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"
#include "cuda/tile_product.hpp"

// Convolutions that cuDNN does not support, as implicit GEMM: each pass is a matrix product whose
// operands are gathered from the images, one product for each group of channels. Sums go over the
// taps of the window in order, and over channels within each tap.
namespace strata::ops::cuda {
namespace {

/// Index arithmetic of the passes.
struct Images {
  explicit Images(const ConvolutionShape& whole)
      : shape(whole),
        in_channels(whole.in_channels / whole.groups),
        out_channels(whole.out_channels / whole.groups),
        taps(whole.height.window * whole.width.window) {}

  ConvolutionShape shape;
  std::int64_t in_channels;   ///< of a group
  std::int64_t out_channels;  ///< of a group
  std::int64_t taps;

  /// Offset of the input pixel under tap `tap` of an output pixel's window; -1 in the padding.
  __device__ std::int64_t input_at(std::int64_t out_pixel, std::int64_t tap) const {
    const std::int64_t row = visible_keys(
        shape.height, out_pixel / shape.width.out % shape.height.out, tap / shape.width.window);
    const std::int64_t column =
        visible_keys(shape.width, out_pixel % shape.width.out, tap % shape.width.window);
    if (!is_within(shape.height, row) || !is_within(shape.width, column)) {
      return -1;
    }
    const std::int64_t image = out_pixel / shape.width.out / shape.height.out;
    return ((image * shape.height.in + row) * shape.width.in + column) * shape.in_channels;
  }
  /// Offset of the output pixel whose window has an input pixel at tap `tap`; -1 where there is
  /// none.
  __device__ std::int64_t output_at(std::int64_t in_pixel, std::int64_t tap) const {
    const std::int64_t row = window_at(shape.height, in_pixel / shape.width.in % shape.height.in,
                                       tap / shape.width.window);
    const std::int64_t column =
        window_at(shape.width, in_pixel % shape.width.in, tap % shape.width.window);
    if (row < 0 || column < 0) {
      return -1;
    }
    const std::int64_t image = in_pixel / shape.width.in / shape.height.in;
    return ((image * shape.height.out + row) * shape.width.out + column) * shape.out_channels;
  }
  /// The weight of output channel `out` and input channel `in` of a group.
  __device__ std::int64_t weight_at(std::int64_t group, std::int64_t out, std::int64_t in,
                                    std::int64_t tap) const {
    return ((group * out_channels + out) * in_channels + in) * taps + tap;
  }
};

/// Output pixels x output channels, summed over taps, then input channels. bias may be null.
template <typename T, typename To>
struct Forward {
  Images images;
  const T* x;
  const T* w;
  const T* bias;
  bool is_relu;
  To* y;

  using C = Compute<T>;
  __device__ C left(std::int64_t group, std::int64_t pixel, std::int64_t k) const {
    const std::int64_t at = images.input_at(pixel, k / images.in_channels);
    return at < 0 ? C{0} : value_of(x[at + group * images.in_channels + k % images.in_channels]);
  }
  __device__ C right(std::int64_t group, std::int64_t k, std::int64_t out) const {
    return value_of(
        w[images.weight_at(group, out, k % images.in_channels, k / images.in_channels)]);
  }
  __device__ void store(std::int64_t group, std::int64_t, std::int64_t pixel, std::int64_t out,
                        C sum) const {
    const std::int64_t channel = group * images.out_channels + out;
    if (bias != nullptr) {
      sum += value_of(bias[channel]);
    }
    y[pixel * images.shape.out_channels + channel] =
        to_storage<To>(is_relu && sum < C{0} ? C{0} : sum);
  }
};

/// Input pixels x input channels, summed over taps, then output channels.
template <typename T, typename To>
struct BackwardInput {
  Images images;
  const T* dy;
  const T* w;
  To* dx;

  using C = Compute<T>;
  __device__ C left(std::int64_t group, std::int64_t pixel, std::int64_t k) const {
    const std::int64_t at = images.output_at(pixel, k / images.out_channels);
    return at < 0 ? C{0} : value_of(dy[at + group * images.out_channels + k % images.out_channels]);
  }
  __device__ C right(std::int64_t group, std::int64_t k, std::int64_t in) const {
    return value_of(
        w[images.weight_at(group, k % images.out_channels, in, k / images.out_channels)]);
  }
  __device__ void store(std::int64_t group, std::int64_t, std::int64_t pixel, std::int64_t in,
                        C sum) const {
    dx[pixel * images.shape.in_channels + group * images.in_channels + in] = to_storage<To>(sum);
  }
};

/// Output channels x (taps, input channels), summed over a piece of the output pixels.
template <typename T>
struct BackwardWeight {
  Images images;
  const T* x;
  const T* dy;
  /// One gradient for each piece.
  Compute<T>* parts;

  using C = Compute<T>;
  __device__ C left(std::int64_t group, std::int64_t out, std::int64_t pixel) const {
    return value_of(dy[pixel * images.shape.out_channels + group * images.out_channels + out]);
  }
  __device__ C right(std::int64_t group, std::int64_t pixel, std::int64_t column) const {
    const std::int64_t at = images.input_at(pixel, column / images.in_channels);
    return at < 0 ? C{0}
                  : value_of(x[at + group * images.in_channels + column % images.in_channels]);
  }
  __device__ void store(std::int64_t group, std::int64_t piece, std::int64_t out,
                        std::int64_t column, C sum) const {
    const std::int64_t weights = images.shape.out_channels * images.in_channels * images.taps;
    parts[piece * weights + images.weight_at(group, out, column % images.in_channels,
                                             column / images.in_channels)] = sum;
  }
};

/// dw[i] = (or +=) the sum over pieces of parts[piece, i], added in order.
template <typename C>
__global__ void add_pieces_kernel(std::int64_t pieces, std::int64_t elements, const C* parts,
                                  bool adds, C* dw) {
  const std::int64_t i = thread_number();
  if (i >= elements) {
    return;
  }
  C sum{0};
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    sum += parts[piece * elements + i];
  }
  dw[i] = adds ? dw[i] + sum : sum;
}

/// Calls function(T{}, To{}) with the types of the operands and of a result: T or its compute type.
template <typename Function>
void with_types(const ConstTensorView& operand, const TensorView& result,
                const Function& function) {
  with_device_type(operand.dtype(), [&]<typename T>(T) {
    if (result.dtype() == kDTypeOf<T>) {
      function(T{}, T{});
    } else {
      function(T{}, Compute<T>{});
    }
  });
}

}  // namespace

void convolution_forward(Context& context, const ConvolutionShape& shape, const ConstTensorView& x,
                         const ConstTensorView& w, const TensorView& y,
                         const ConvolutionOptions& options) {
  if (run_by_cudnn<library_forward>(context, shape, x, w, y)) {
    if (options.activation == Activation::kRelu || !options.bias.empty()) {
      with_device_type(y.dtype(), [&]<typename T>(T) {
        add_bias<T>(context, "a convolution's bias", y, shape.out_channels,
                    device_or_null<T>(options.bias), options.activation);
      });
    }
    return;
  }
  const Images images(shape);
  const TileProduct product{.groups = shape.groups,
                            .rows = shape.images * shape.height.out * shape.width.out,
                            .columns = images.out_channels,
                            .summed = images.taps * images.in_channels};
  with_types(x, y, [&]<typename T, typename To>(T, To) {
    tile_product<Compute<T>>(
        context, "convolution_forward", product,
        Forward<T, To>{images, x.device<T>(), w.device<T>(), device_or_null<T>(options.bias),
                       options.activation == Activation::kRelu, y.device<To>()});
  });
}

void convolution_backward_input(Context& context, const ConvolutionShape& shape,
                                const ConstTensorView& dy, const ConstTensorView& w,
                                const TensorView& dx) {
  if (run_by_cudnn<library_backward_input>(context, shape, dy, w, dx)) {
    return;
  }
  const Images images(shape);
  const TileProduct product{.groups = shape.groups,
                            .rows = shape.images * shape.height.in * shape.width.in,
                            .columns = images.in_channels,
                            .summed = images.taps * images.out_channels};
  with_types(dy, dx, [&]<typename T, typename To>(T, To) {
    tile_product<Compute<T>>(
        context, "convolution_backward_input", product,
        BackwardInput<T, To>{images, dy.device<T>(), w.device<T>(), dx.device<To>()});
  });
}

void convolution_backward_weight(Context& context, const ConvolutionShape& shape,
                                 const ConstTensorView& x, const ConstTensorView& dy,
                                 const TensorView& dw, Accumulate accumulate) {
  if (run_by_cudnn<library_backward_weight>(context, shape, x, dy, dw, accumulate)) {
    return;
  }
  const Images images(shape);
  TileProduct product{.groups = shape.groups,
                      .rows = images.out_channels,
                      .columns = images.taps * images.in_channels,
                      .summed = shape.images * shape.height.out * shape.width.out};
  // Split-k: few elements with long sums. The splits depend only on the shape.
  constexpr std::int64_t kPiece = 1024;
  constexpr std::int64_t kMaxPieces = 128;
  const std::int64_t least = (product.summed + kMaxPieces - 1) / kMaxPieces;
  product.piece = least > kPiece ? least : kPiece;
  const std::int64_t pieces = product.pieces();
  with_device_type(x.dtype(), [&]<typename T>(T) {
    using C = Compute<T>;
    C* const parts = scratch_of<C>(context, pieces * dw.count());
    tile_product<C>(context, "convolution_backward_weight", product,
                    BackwardWeight<T>{images, x.device<T>(), dy.device<T>(), parts});
    launch(context, "a convolution's pieces", grid_of(dw.count()), add_pieces_kernel<C>, pieces,
           dw.count(), parts, accumulate == Accumulate::kAdd, dw.device<C>());
  });
}

}  // namespace strata::ops::cuda
