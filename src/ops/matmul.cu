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

/// What a product reads and writes; all but a, b and c may be empty.
struct ProductTensors {
  ConstTensorView a;
  ConstTensorView b;
  /// What it is added to: c, or a tensor like it.
  ConstTensorView addend;
  ConstTensorView bias;
  /// The argument of gelu that is kept, or that gelu's gradient is taken at.
  TensorView kept;
  ConstTensorView read;
  TensorView c;
};

/// A product's tensors with copies in their place where they are not aligned as the library's
/// kernels want it, so that the choice of a kernel, and the bits, never follow from addresses.
class AlignedTensors {
 public:
  AlignedTensors(Context& context, const ProductTensors& tensors)
      : stream_(stream_of(context)), c_(tensors.c), kept_(tensors.kept) {
    const bool adds_in_place = tensors.addend.raw() == tensors.c.raw();
    const ConstTensorView addend = adds_in_place ? ConstTensorView() : tensors.addend;
    std::int64_t bytes = 0;
    for (const ConstTensorView& tensor :
         {tensors.a, tensors.b, addend, tensors.bias, ConstTensorView(tensors.kept), tensors.read,
          ConstTensorView(tensors.c)}) {
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
    at_.a = place(tensors.a, true);
    at_.b = place(tensors.b, true);
    at_.bias = place(tensors.bias, true);
    at_.c = place(tensors.c, adds_in_place);
    at_.addend = addend.empty() ? at_.c : place(addend, true);
    at_.pre_activation =
        tensors.kept.empty() ? place(tensors.read, true) : place(tensors.kept, false);
  }

  [[nodiscard]] const ProductAddresses& at() const { return at_; }
  /// Brings results that stand in copies to where they belong.
  void finish() const {
    if (at_.c != c_.raw()) {
      copy(c_.raw(), at_.c, c_.bytes());
    }
    if (!kept_.empty() && at_.pre_activation != kept_.raw()) {
      copy(kept_.raw(), at_.pre_activation, kept_.bytes());
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
  TensorView kept_;
  ProductAddresses at_;
};

/// c = c + bias, or relu of it.
template <typename T, typename Bias>
__global__ void bias_kernel(std::int64_t count, std::int64_t columns, const Bias* bias,
                            bool is_relu, T* c) {
  const std::int64_t i = thread_number();
  if (i >= count) {
    return;
  }
  using C = Compute<T>;
  const C value = value_of(c[i]) + value_of(bias[i % columns]);
  c[i] = stored<T>(is_relu && value < C{0} ? C{0} : value);
}

/// Adds a bias, and takes relu where it is asked for, behind a product.
void add_bias(Context& context, const MatmulOptions& options, const TensorView& c) {
  const auto add = [&]<typename T, typename Bias>(T, Bias) {
    launch(context, "a product's bias", grid_of(c.count()), bias_kernel<T, Bias>, c.count(),
           c.shape()[1], options.bias.device<Bias>(), options.activation == Activation::kRelu,
           c.device<T>());
  };
  with_device_type(options.bias.dtype(), [&]<typename Bias>(Bias) {
    if (c.dtype() == options.bias.dtype()) {
      add(Bias{}, Bias{});
    } else if constexpr (std::is_same_v<Bias, __nv_bfloat16>) {
      add(float{}, Bias{});
    }
  });
}

/// The epilogue that does most of what is asked for of those that the library has a kernel with.
/// GELU and its gradient are an approximation whose error is documented nowhere, so they are the
/// library's among bfloat16 alone. Its relu, a maximum with 0, does not say what becomes of a NaN.
cublasLtEpilogue_t epilogue_of(ProductLibrary& library, LibraryProduct product,
                               const MatmulOptions& options) {
  const bool same_types = product.operands == product.result;
  const bool takes_gelu = same_types && product.operands == DType::kBfloat16 &&
                          product.n % ProductLibrary::kPreActivationMultiple == 0;
  const bool wants_bias = !options.bias.empty();
  const auto is_had = [&](cublasLtEpilogue_t epilogue) {
    product.epilogue = epilogue;
    return library.has(product);
  };
  if (takes_gelu && !options.gelu_gradient_of.empty() && is_had(CUBLASLT_EPILOGUE_DGELU)) {
    return product.epilogue;
  }
  if (takes_gelu && options.activation == Activation::kGelu &&
      is_had(wants_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)) {
    return product.epilogue;
  }
  if (wants_bias && same_types && product.operands != DType::kFloat64 &&
      is_had(CUBLASLT_EPILOGUE_BIAS)) {
    return product.epilogue;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

/// What the options ask for and the epilogue has not done; `made` holds what the product gave.
void finish(Context& context, const MatmulOptions& options, cublasLtEpilogue_t epilogue,
            const TensorView& made, const TensorView& c) {
  if (!options.bias.empty() && !has_bias(epilogue)) {
    add_bias(context, options, made);
  } else if (options.activation == Activation::kRelu) {
    cuda::activation_forward(context, Activation::kRelu, made, c);
  }
  if (has_pre_activation(epilogue)) {
    return;
  }
  if (options.activation == Activation::kGelu) {
    cuda::activation_forward(context, Activation::kGelu, made, c);
  } else if (!options.gelu_gradient_of.empty()) {
    cuda::activation_backward(context, Activation::kGelu, options.gelu_gradient_of, {}, c, c);
  }
}

}  // namespace

void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c, const MatmulOptions& options) {
  for (const ConstTensorView& tensor :
       {a, b, options.bias, options.addend, ConstTensorView(options.pre_activation),
        options.gelu_gradient_of, ConstTensorView(c)}) {
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
  product.accumulate = options.addend.empty() ? options.accumulate : Accumulate::kAdd;
  product.precision = context.cuda_state().options().float32_products;
  ProductLibrary& library = library_of(context);
  product.epilogue = epilogue_of(library, product, options);
  const bool gelu_behind =
      options.activation == Activation::kGelu && !has_pre_activation(product.epilogue);
  const TensorView& made = gelu_behind ? options.pre_activation : c;
  ProductTensors tensors;
  tensors.a = a;
  tensors.b = b;
  tensors.addend = options.accumulate == Accumulate::kAdd ? ConstTensorView(c) : options.addend;
  tensors.c = made;
  if (has_bias(product.epilogue)) {
    tensors.bias = options.bias;
  }
  if (has_pre_activation(product.epilogue)) {
    tensors.kept = options.pre_activation;
    tensors.read = options.gelu_gradient_of;
  }
  const AlignedTensors aligned(context, tensors);
  library.multiply(product, aligned.at(), context.cuda_state().workspace(), stream_of(context));
  aligned.finish();
  finish(context, options, product.epilogue, made, c);
}

}  // namespace strata::ops::cuda
