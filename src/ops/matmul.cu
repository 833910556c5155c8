#include "strata/ops/matmul.hpp"

#include "checks.hpp"
#include "cuda_kernel.hpp"
#include "cuda_ops.hpp"
#include "cuda_product_library.hpp"

namespace strata::ops::cuda {
namespace {

ProductLibrary& library_of(Context& context) {
  auto& library = context.cuda_state().product_library();
  if (library == nullptr) {
    stream_of(context);
    library = {new ProductLibrary(), [](ProductLibrary* made) { delete made; }};
  }
  return *library;
}

bool is_aligned(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % ProductLibrary::kAlignmentBytes == 0;
}

/// A product's tensors with copies in their place where they are not aligned as the library's
/// kernels want it, so that the choice of a kernel, and the bits, never follow from addresses.
class AlignedOperands {
 public:
  AlignedOperands(Context& context, const ConstTensorView& a, const ConstTensorView& b,
                  const ConstTensorView& bias, const TensorView& c, Accumulate accumulate)
      : stream_(stream_of(context)), c_(c) {
    std::int64_t bytes = 0;
    for (const ConstTensorView& tensor : {a, b, bias, ConstTensorView(c)}) {
      bytes += is_aligned(tensor.raw()) ? 0 : padded(tensor.bytes());
    }
    std::byte* free = bytes == 0 ? nullptr : scratch_of<std::byte>(context, bytes);
    const auto place = [&](const ConstTensorView& tensor, bool reads) {
      if (is_aligned(tensor.raw())) {
        return const_cast<std::byte*>(tensor.raw());
      }
      std::byte* const copied = free;
      free += padded(tensor.bytes());
      if (reads) {
        copy(copied, tensor.raw(), tensor.bytes());
      }
      return copied;
    };
    at_.a = place(a, true);
    at_.b = place(b, true);
    at_.bias = place(bias, true);
    at_.c = place(c, accumulate == Accumulate::kAdd);
  }

  [[nodiscard]] const ProductAddresses& at() const { return at_; }
  /// Brings a result that stands in a copy to where it belongs.
  void finish() const {
    if (at_.c != c_.raw()) {
      copy(c_.raw(), at_.c, c_.bytes());
    }
  }

 private:
  static std::int64_t padded(std::int64_t bytes) {
    constexpr std::int64_t kLine = 256;
    return (bytes + kLine - 1) / kLine * kLine;
  }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                          stream_),
          "copying a product's tensor");
  }

  cudaStream_t stream_;
  TensorView c_;
  ProductAddresses at_;
};

/// c = relu(c + bias), either of which may be left out; bias may be null.
template <typename T, typename Bias>
__global__ void finish_kernel(std::int64_t count, std::int64_t columns, const Bias* bias,
                              bool is_relu, T* c) {
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  T value = c[i];
  if (bias != nullptr) {
    value += value_of(bias[i % columns]);
  }
  c[i] = is_relu && value < T{0} ? T{0} : value;
}

template <typename T, typename Bias>
void finish(Context& context, const TensorView& c, const MatmulOptions& options) {
  launch(context, "a product's bias", grid_of(c.count()), finish_kernel<T, Bias>, c.count(),
         c.shape()[1], device_or_null<Bias>(options.bias), options.activation == Activation::kRelu,
         c.device<T>());
}

}  // namespace

void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c, const MatmulOptions& options) {
  for (const ConstTensorView& tensor : {a, b, options.bias, ConstTensorView(c)}) {
    require_place(context, tensor);
  }
  LibraryProduct product;
  product.m = c.shape()[0];
  product.n = c.shape()[1];
  product.k = a.shape()[options.transpose_a == Transpose::kYes ? 0 : 1];
  product.operands = a.dtype();
  product.result = c.dtype();
  product.transpose_a = options.transpose_a;
  product.transpose_b = options.transpose_b;
  product.accumulate = options.accumulate;
  product.precision = context.cuda_state().options().float32_products;
  const bool has_bias = !options.bias.empty();
  const bool is_relu = options.activation == Activation::kRelu;
  // The library adds a bias behind a product of same types, but for doubles. Its relu, a maximum
  // with 0, does not say what becomes of a NaN.
  const bool library_adds_bias = has_bias && a.dtype() == c.dtype() && a.dtype() != DType::kFloat64;
  if (library_adds_bias) {
    product.epilogue = CUBLASLT_EPILOGUE_BIAS;
  }
  ProductLibrary& library = library_of(context);
  const AlignedOperands operands(
      context, a, b, library_adds_bias ? options.bias : ConstTensorView(), c, options.accumulate);
  library.multiply(product, operands.at(), context.cuda_state().workspace(), stream_of(context));
  operands.finish();
  if (library_adds_bias || !has_bias) {
    if (is_relu) {
      cuda::activation_forward(context, Activation::kRelu, c, c);
    }
  } else if (a.dtype() == DType::kFloat64) {
    finish<double, double>(context, c, options);
  } else {
    finish<float, __nv_bfloat16>(context, c, options);
  }
}

}  // namespace strata::ops::cuda
