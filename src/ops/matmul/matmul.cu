#include <algorithm>

#include "strata/ops/matmul.hpp"

#include "checks.hpp"
#include "cuda/aligned.hpp"
#include "cuda/bias.hpp"
#include "cuda/column_sums.hpp"
#include "cuda/kernel.hpp"
#include "cuda/ops.hpp"
#include "cuda/resources.hpp"
#include "cuda/stream.hpp"
#include "matmul/cublaslt_products.hpp"

namespace strata::ops::cuda {
namespace {

CublasLtProducts& library_of(Context& context) {
  auto& library = context.cuda_resources().cublaslt_products();
  if (library == nullptr) {
    stream_of(context);
    library = {new CublasLtProducts(context.cuda_resources().kernels()),
               [](CublasLtProducts* made) { delete made; }};
  }
  return *library;
}

/// Adds the options' bias, and applies their ReLU, after a product.
void add_product_bias(Context& context, const MatmulOptions& options, const TensorView& c) {
  constexpr const char* kName = "a product's bias";
  with_device_type(options.bias.dtype(), [&]<typename Bias>(Bias) {
    const Bias* const bias = options.bias.device<Bias>();
    if (c.dtype() == options.bias.dtype()) {
      add_bias<Bias>(context, kName, c, c.shape()[1], bias, options.activation);
    } else if constexpr (std::is_same_v<Bias, __nv_bfloat16>) {
      add_bias<float>(context, kName, c, c.shape()[1], bias, options.activation);
    }
  });
}

/// The most complete epilogue for which the library has a kernel. The library's GELU and its
/// gradient are approximations of undocumented error, so only bfloat16 products use them. Its ReLU,
/// a maximum with 0, does not specify NaNs and is not used.
cublasLtEpilogue_t epilogue_of(CublasLtProducts& library, CublasLtProduct product,
                               const MatmulOptions& options) {
  const bool same_types = product.operands == product.result;
  const bool takes_gelu = same_types && product.operands == DType::kBfloat16 &&
                          product.n % CublasLtProducts::kPreActivationMultiple == 0;
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

/// The tensors of a product but for those of its options.
struct ProductTensors {
  const ConstTensorView& a;
  const ConstTensorView& b;
  const TensorView& c;
  /// The library's output: c, or the argument of a separate GELU.
  const TensorView& made;
};

/// Rows of a piece of a product that sums over many rows.
constexpr std::int64_t kProductPieceRows = 8192;

/// Enqueues a product. One with few elements that sums over many rows, as a weight gradient's, goes
/// in pieces of the rows: without split-k the library has no fast kernel for it. The pieces add up
/// in order.
void enqueue(Context& context, CublasLtProduct product, ProductAddresses at) {
  constexpr std::int64_t kFewElements = 1 << 20;
  const bool in_pieces = product.transpose_a == Transpose::kYes &&
                         product.transpose_b == Transpose::kNo &&
                         product.operands == DType::kBfloat16 && product.split_k == Switch::kOff &&
                         product.result == DType::kFloat32 && product.m * product.n <= kFewElements;
  const std::int64_t rows = product.k;
  for (std::int64_t first = 0; first < rows; first += kProductPieceRows) {
    product.k = in_pieces ? std::min(kProductPieceRows, rows - first) : rows;
    library_of(context).multiply(product, at, context.cuda_resources().workspace(),
                                 stream_of(context));
    if (product.k == rows) {
      return;
    }
    const std::int64_t element = size_bytes(product.operands);
    at.a += kProductPieceRows * product.row_a * element;
    at.b += kProductPieceRows * product.n * element;
    at.addend = at.c;
    product.accumulate = Accumulate::kAdd;
  }
}

/// The part of a product that the library computes. `zero_rows`: rows of zeros behind those of b.
void multiply(Context& context, const CublasLtProduct& product, const ProductTensors& tensors,
              const MatmulOptions& options, std::int64_t zero_rows) {
  ProductAddresses at;
  AlignedTensors aligned(context, "copying a product's tensor");
  aligned.reads(tensors.a, at.a);
  aligned.reads(tensors.b, at.b);
  if (has_bias(product.epilogue)) {
    aligned.reads(options.bias, at.bias);
  }
  if (has_pre_activation(product.epilogue)) {
    if (options.pre_activation.empty()) {
      aligned.reads(options.gelu_gradient_of, at.pre_activation);
    } else {
      aligned.writes(options.pre_activation, at.pre_activation);
    }
  }
  const ConstTensorView addend =
      options.accumulate == Accumulate::kAdd ? ConstTensorView(tensors.c) : options.addend;
  if (addend.raw() == tensors.made.raw()) {
    aligned.updates(tensors.made, at.c);
  } else {
    aligned.writes(tensors.made, at.c);
    aligned.reads(addend, at.addend);
  }
  const std::int64_t behind = zero_rows * tensors.b.shape()[1] * size_bytes(product.operands);
  std::byte* const longer = aligned.place(behind == 0 ? 0 : tensors.b.bytes() + behind);
  if (behind != 0) {
    constexpr const char* kWhat = "padding a product's tensor";
    const cudaStream_t stream = stream_of(context);
    const auto bytes = static_cast<std::size_t>(tensors.b.bytes());
    check(cudaMemcpyAsync(longer, at.b, bytes, cudaMemcpyDeviceToDevice, stream), kWhat);
    check(cudaMemsetAsync(longer + bytes, 0, static_cast<std::size_t>(behind), stream), kWhat);
    at.b = longer;
  }
  if (at.addend == nullptr) {
    at.addend = at.c;
  }
  enqueue(context, product, at);
  aligned.finish();
}

/// The options that the epilogue does not cover; `made` holds the product.
void finish(Context& context, const MatmulOptions& options, cublasLtEpilogue_t epilogue,
            const TensorView& made, const TensorView& c) {
  if (!options.bias.empty() && !has_bias(epilogue)) {
    add_product_bias(context, options, made);
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

/// One row of a product with a transposed a.
template <typename T>
struct RowTerm {
  static constexpr int kSums = 1;

  const T* a;
  std::int64_t row_a;
  const T* b;
  std::int64_t n;

  template <int kWidth>
  __device__ auto of_columns(std::int64_t j) const {
    return [left = a, row_a = row_a, right = b + j, n = n](std::int64_t row, Compute<T>* sums) {
      const Compute<T> factor = value_of(left[row * row_a]);
      const auto values = elements_at<kWidth>(right + row * n);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        sums[i] += factor * value_of(values.at[i]);
      }
    };
  }
};

/// c = (or +=) a^T b, where the rows of a are longer than c has rows. The library computes rows up
/// to the last multiple of kPaddedRow, for it is slow where c has an odd number; the rest are sums.
void matmul_transposed_padded(Context& context, CublasLtProduct product,
                              const ProductTensors& tensors, const MatmulOptions& options) {
  const std::int64_t rows = product.m;
  product.m -= rows % kPaddedRow;
  if (product.m > 0) {
    multiply(context, product, tensors, options, 0);
  }
  with_device_type(product.operands, [&]<typename T>(T) {
    using C = Compute<T>;
    for (std::int64_t row = product.m; row < rows; ++row) {
      const T* const b = tensors.b.device<T>();
      sum_over_rows<C>(context, "a row of a product", {product.k, product.n},
                       RowTerm<T>{tensors.a.device<T>() + row, product.row_a, b, product.n},
                       StoreSums<C>{tensors.c.device<C>() + row * product.n, nullptr,
                                    options.accumulate == Accumulate::kAdd},
                       b);
    }
  });
}

}  // namespace

void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b,
            const TensorView& c, const MatmulOptions& options) {
  for (const ConstTensorView& tensor :
       {a, b, options.bias, options.addend, ConstTensorView(options.pre_activation),
        options.gelu_gradient_of, ConstTensorView(c)}) {
    require_memory_space(context, tensor);
  }
  CublasLtProduct product;
  const bool transposed_a = options.transpose_a == Transpose::kYes;
  const bool transposed_b = options.transpose_b == Transpose::kYes;
  product.m = c.shape()[0];
  product.n = c.shape()[1];
  product.k = a.shape()[transposed_a ? 0 : 1];
  product.row_a = a.shape()[1];
  product.row_c = c.shape()[1];
  product.operands = a.dtype();
  product.result = c.dtype();
  product.transpose_a = options.transpose_a;
  product.transpose_b = options.transpose_b;
  product.accumulate = options.addend.empty() ? options.accumulate : Accumulate::kAdd;
  product.precision = context.cuda_resources().options().float32_products;
  product.split_k = context.cuda_resources().options().split_k;
  product.epilogue = epilogue_of(library_of(context), product, options);
  if (transposed_a && product.row_a != product.m && c.dtype() == compute_dtype(a.dtype())) {
    matmul_transposed_padded(context, product, {a, b, c, c}, options);
    return;
  }
  // Longer rows of a or c: rows of zeros behind b give them terms of 0.
  const std::int64_t zero_rows = (transposed_b ? product.n : product.k) - b.shape()[0];
  const bool gelu_behind =
      options.activation == Activation::kGelu && !has_pre_activation(product.epilogue);
  const TensorView& made = gelu_behind ? options.pre_activation : c;
  multiply(context, product, {a, b, c, made}, options, zero_rows);
  finish(context, options, product.epilogue, made, c);
}

}  // namespace strata::ops::cuda
