#include "convolution/cudnn_convolution.hpp"

#ifdef STRATA_HAVE_CUDNN

#include <cstdint>
#include <optional>

#include "checks.hpp"
#include "convolution/cudnn_convolution_plans.hpp"
#include "cuda/aligned.hpp"
#include "cuda/kernel.hpp"
#include "cuda/resources.hpp"

// For channels-last images cuDNN wants channels-last weights and results in the operands' dtype.
// Each call reorders the weights, which are small compared with the images, and reorders the
// gradient back. For a float32 result of bfloat16 operands the operands are converted to float32.
namespace strata::ops::cuda {
namespace {

CudnnConvolutionPlans& library_of(Context& context) {
  auto& library = context.cuda_resources().cudnn_convolution_plans();
  if (library == nullptr) {
    library = {new CudnnConvolutionPlans(cudnn_of(context), context.cuda_resources().kernels()),
               [](CudnnConvolutionPlans* made) { delete made; }};
  }
  return *library;
}

/// Layouts of the weights: ours is [out_channels, in_channels of a group, taps], cuDNN's has the
/// last two exchanged.
struct WeightOrder {
  explicit WeightOrder(const ConvolutionShape& shape)
      : count(shape.weight().count()),
        in_channels(shape.in_channels / shape.groups),
        taps(shape.height.window * shape.width.window) {}

  std::int64_t count;
  std::int64_t in_channels;
  std::int64_t taps;

  /// Index in our layout of element i of cuDNN's.
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
    ordered[i] = to_storage<To>(value_of(w[order.own(i)]));
  }
}

/// dw = (or +=) the gradient in cuDNN's layout.
template <typename C>
__global__ void restore_weight_kernel(WeightOrder order, const C* ordered, bool adds, C* dw) {
  const std::int64_t i = thread_number();
  if (i < order.count) {
    const std::int64_t own = order.own(i);
    dw[own] = adds ? dw[own] + ordered[i] : ordered[i];
  }
}

/// One pass by cuDNN.
class LibraryPass {
 public:
  LibraryPass(Context& context, ConvolutionPass pass, const ConvolutionShape& shape, DType operands,
              DType result)
      : context_(context), tensors_(context, "copying a convolution's tensor") {
    convolution_ = {
        .pass = pass,
        .shape = shape,
        .dtype = result,
        .values = operands == result ? ConvolutionValues::kOwn : ConvolutionValues::kOfBfloat16,
        .precision = context.cuda_resources().options().float32_products};
  }

  using Address = std::byte* ConvolutionAddresses::*;
  void reads(const ConstTensorView& images, Address at) {
    require_memory_space(context_, images);
    tensors_.reads_as(convolution_.dtype, images, at_.*at);
  }
  void writes(const TensorView& images, Address at) {
    require_memory_space(context_, images);
    tensors_.writes(images, at_.*at);
  }
  /// Whether cuDNN supports the pass; if so, allocates its scratch.
  [[nodiscard]] bool begin() {
    if (context_.cuda_resources().options().convolution_kernels == LibraryKernels::kOwn) {
      return false;
    }
    const std::optional<std::int64_t> workspace_bytes =
        library_of(context_).workspace_bytes(convolution_);
    if (!workspace_bytes) {
      return false;
    }
    const std::int64_t w_bytes =
        line_bytes(convolution_.shape.weight().count() * size_bytes(convolution_.dtype));
    at_.w = tensors_.place(w_bytes + *workspace_bytes);
    at_.workspace = at_.w + w_bytes;
    return true;
  }
  /// Whether cuDNN runs the pass.
  [[nodiscard]] bool run() {
    if (!library_of(context_).run(convolution_, at_)) {
      return false;
    }
    tensors_.finish();
    return true;
  }
  /// The same with the weight w, which the pass reads.
  [[nodiscard]] bool run_with(const ConstTensorView& w) {
    if (!begin()) {
      return false;
    }
    read_weight(w);
    return run();
  }
  void write_weight(const TensorView& dw, Accumulate accumulate) {
    const WeightOrder order(convolution_.shape);
    with_device_type(dw.dtype(), [&]<typename T>(T) {
      using C = Compute<T>;
      launch(context_, "a convolution's weight gradient", grid_of(order.count),
             restore_weight_kernel<C>, order, reinterpret_cast<const C*>(at_.w),
             accumulate == Accumulate::kAdd, dw.device<C>());
    });
  }

 private:
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

  Context& context_;
  CudnnConvolution convolution_;
  ConvolutionAddresses at_;
  AlignedTensors tensors_;
};

}  // namespace

bool library_forward(Context& context, const ConvolutionShape& shape, const ConstTensorView& x,
                     const ConstTensorView& w, const TensorView& y) {
  LibraryPass pass(context, ConvolutionPass::kForward, shape, x.dtype(), y.dtype());
  pass.reads(x, &ConvolutionAddresses::x);
  pass.writes(y, &ConvolutionAddresses::y);
  return pass.run_with(w);
}

bool library_backward_input(Context& context, const ConvolutionShape& shape,
                            const ConstTensorView& dy, const ConstTensorView& w,
                            const TensorView& dx) {
  LibraryPass pass(context, ConvolutionPass::kBackwardInput, shape, dy.dtype(), dx.dtype());
  pass.writes(dx, &ConvolutionAddresses::x);
  pass.reads(dy, &ConvolutionAddresses::y);
  return pass.run_with(w);
}

bool library_backward_weight(Context& context, const ConvolutionShape& shape,
                             const ConstTensorView& x, const ConstTensorView& dy,
                             const TensorView& dw, Accumulate accumulate) {
  require_memory_space(context, dw);
  LibraryPass pass(context, ConvolutionPass::kBackwardWeight, shape, dy.dtype(), dw.dtype());
  pass.reads(x, &ConvolutionAddresses::x);
  pass.reads(dy, &ConvolutionAddresses::y);
  if (!pass.begin() || !pass.run()) {
    return false;
  }
  pass.write_weight(dw, accumulate);
  return true;
}

}  // namespace strata::ops::cuda

#endif
