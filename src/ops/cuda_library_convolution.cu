#include "cuda_library_convolution.hpp"

#ifdef STRATA_HAVE_CUDNN

#include <optional>

#include "checks.hpp"
#include "cuda_convolution_library.hpp"
#include "cuda_kernel.hpp"
#include "cuda_ops.hpp"

// cuDNN wants weights channels last beside such images, results of the operands' dtype, and
// addresses that no choice of its kernels follows from. Weights, small beside the images, are put
// in its order on each call; the gradient goes back in ours. Where a result of bfloat16 operands is
// float32, it gets the operands in float32.
namespace strata::ops::cuda {
namespace {

ConvolutionLibrary& library_of(Context& context) {
  auto& library = context.cuda_state().convolution_library();
  if (library == nullptr) {
    library = {new ConvolutionLibrary(stream_of(context)),
               [](ConvolutionLibrary* made) { delete made; }};
  }
  return *library;
}

/// How weights lie: ours [out_channels, in_channels of a group, taps], cuDNN's with the last two
/// exchanged.
struct WeightOrder {
  explicit WeightOrder(const ConvolutionShape& shape)
      : count(shape.weight().count()),
        in_channels(shape.in_channels / shape.groups),
        taps(shape.height.window * shape.width.window) {}

  std::int64_t count;
  std::int64_t in_channels;
  std::int64_t taps;

  /// Where element i of cuDNN's order stands in ours.
  __device__ std::int64_t own(std::int64_t i) const {
    const std::int64_t in = i % in_channels;
    const std::int64_t tap = i / in_channels % taps;
    return (i / in_channels / taps * in_channels + in) * taps + tap;
  }
};

template <typename From, typename To>
__global__ void order_weight_kernel(WeightOrder order, const From* w, To* ordered) {
  const std::int64_t i = thread_number();
  if (i < order.count) {
    ordered[i] = stored<To>(value_of(w[order.own(i)]));
  }
}

/// dw = (or +=) the gradient in cuDNN's order.
template <typename C>
__global__ void restore_weight_kernel(WeightOrder order, const C* ordered, bool adds, C* dw) {
  const std::int64_t i = thread_number();
  if (i < order.count) {
    const std::int64_t own = order.own(i);
    dw[own] = adds ? dw[own] + ordered[i] : ordered[i];
  }
}

/// One pass by cuDNN: x and y are images, of which a gradient may take the place; `result` is the
/// one of them that is written, or a weight gradient.
class LibraryPass {
 public:
  LibraryPass(Context& context, ConvolutionPass pass, const ConvolutionShape& shape,
              const ConstTensorView& x, const ConstTensorView& y, const TensorView& result)
      : context_(context), stream_(stream_of(context)), x_(x), y_(y), result_(result) {
    require_place(context, x);
    require_place(context, y);
    require_place(context, result);
    const DType operands = pass == ConvolutionPass::kForward ? x.dtype() : y.dtype();
    convolution_ = {.pass = pass,
                    .shape = shape,
                    .dtype = result.dtype(),
                    .values = operands == result.dtype() ? ConvolutionValues::kOwn
                                                         : ConvolutionValues::kOfBfloat16,
                    .precision = context.cuda_state().options().float32_products};
  }

  /// Whether cuDNN takes it; then memory is taken from the scratch.
  [[nodiscard]] bool begin() {
    if (context_.cuda_state().options().convolution_kernels == LibraryKernels::kOwn) {
      return false;
    }
    const std::optional<std::int64_t> workspace =
        library_of(context_).workspace_bytes(convolution_);
    if (!workspace) {
      return false;
    }
    const std::int64_t x_bytes = is_ready(x_) ? 0 : padded_bytes(x_.count());
    const std::int64_t y_bytes = is_ready(y_) ? 0 : padded_bytes(y_.count());
    const std::int64_t w_bytes = padded_bytes(convolution_.shape.weight().count());
    std::byte* const free =
        scratch_of<std::byte>(context_, x_bytes + y_bytes + w_bytes + *workspace);
    at_.x = is_ready(x_) ? address(x_) : free;
    at_.y = is_ready(y_) ? address(y_) : free + x_bytes;
    at_.w = free + x_bytes + y_bytes;
    at_.workspace = at_.w + w_bytes;
    return true;
  }
  void read_x() { read(x_, at_.x); }
  void read_y() { read(y_, at_.y); }
  void read_weight(const ConstTensorView& w) {
    const WeightOrder order(convolution_.shape);
    with_device_type(w.dtype(), [&]<typename From>(From) {
      const auto put = [&]<typename To>(To) {
        launch(context_, "a convolution's weight", grid_of(order.count),
               order_weight_kernel<From, To>, order, w.device<From>(),
               reinterpret_cast<To*>(at_.w));
      };
      if (convolution_.values == ConvolutionValues::kOwn) {
        put(From{});
      } else {
        put(Compute<From>{});
      }
    });
  }
  [[nodiscard]] bool run() { return library_of(context_).run(convolution_, at_); }
  /// Brings the result's images to where they belong.
  void write_images() {
    const std::byte* const from = convolution_.pass == ConvolutionPass::kForward ? at_.y : at_.x;
    if (from != result_.raw()) {
      copy(result_.raw(), from, result_.bytes());
    }
  }
  void write_weight(Accumulate accumulate) {
    const WeightOrder order(convolution_.shape);
    with_device_type(result_.dtype(), [&]<typename T>(T) {
      using C = Compute<T>;
      launch(context_, "a convolution's weight gradient", grid_of(order.count),
             restore_weight_kernel<C>, order, reinterpret_cast<const C*>(at_.w),
             accumulate == Accumulate::kAdd, result_.device<C>());
    });
  }

 private:
  [[nodiscard]] static std::byte* address(const ConstTensorView& tensor) {
    return const_cast<std::byte*>(tensor.raw());
  }
  /// Whether cuDNN can have the images where and as they are.
  [[nodiscard]] bool is_ready(const ConstTensorView& images) const {
    return images.dtype() == convolution_.dtype &&
           reinterpret_cast<std::uintptr_t>(images.raw()) % ConvolutionLibrary::kAlignmentBytes ==
               0;
  }
  [[nodiscard]] std::int64_t padded_bytes(std::int64_t count) const {
    constexpr std::int64_t kLine = 256;
    return (count * size_bytes(convolution_.dtype) + kLine - 1) / kLine * kLine;
  }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                          stream_),
          "copying a convolution's tensor");
  }
  void read(const ConstTensorView& images, std::byte* to) {
    if (images.dtype() != convolution_.dtype) {
      cuda::convert(context_, images,
                    TensorView(to, images.shape(), convolution_.dtype, images.place()));
    } else if (to != images.raw()) {
      copy(to, images.raw(), images.bytes());
    }
  }

  Context& context_;
  cudaStream_t stream_;
  ConstTensorView x_;
  ConstTensorView y_;
  TensorView result_;
  LibraryConvolution convolution_;
  ConvolutionAddresses at_;
};

}  // namespace

bool library_forward(Context& context, const ConvolutionShape& shape, const ConstTensorView& x,
                     const ConstTensorView& w, const TensorView& y) {
  LibraryPass pass(context, ConvolutionPass::kForward, shape, x, y, y);
  if (!pass.begin()) {
    return false;
  }
  pass.read_x();
  pass.read_weight(w);
  if (!pass.run()) {
    return false;
  }
  pass.write_images();
  return true;
}

bool library_backward_input(Context& context, const ConvolutionShape& shape,
                            const ConstTensorView& dy, const ConstTensorView& w,
                            const TensorView& dx) {
  LibraryPass pass(context, ConvolutionPass::kBackwardInput, shape, dx, dy, dx);
  if (!pass.begin()) {
    return false;
  }
  pass.read_y();
  pass.read_weight(w);
  if (!pass.run()) {
    return false;
  }
  pass.write_images();
  return true;
}

bool library_backward_weight(Context& context, const ConvolutionShape& shape,
                             const ConstTensorView& x, const ConstTensorView& dy,
                             const TensorView& dw, Accumulate accumulate) {
  LibraryPass pass(context, ConvolutionPass::kBackwardWeight, shape, x, dy, dw);
  if (!pass.begin()) {
    return false;
  }
  pass.read_x();
  pass.read_y();
  if (!pass.run()) {
    return false;
  }
  pass.write_weight(accumulate);
  return true;
}

}  // namespace strata::ops::cuda

#else

namespace strata::ops::cuda {

bool library_forward(Context&, const ConvolutionShape&, const ConstTensorView&,
                     const ConstTensorView&, const TensorView&) {
  return false;
}

bool library_backward_input(Context&, const ConvolutionShape&, const ConstTensorView&,
                            const ConstTensorView&, const TensorView&) {
  return false;
}

bool library_backward_weight(Context&, const ConvolutionShape&, const ConstTensorView&,
                             const ConstTensorView&, const TensorView&, Accumulate) {
  return false;
}

}  // namespace strata::ops::cuda

#endif
