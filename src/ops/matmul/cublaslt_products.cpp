#ifdef STRATA_HAVE_CUDA

#include "matmul/cublaslt_products.hpp"

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/device/failure.hpp"

#include "cuda/aligned.hpp"
#include "cuda/resources.hpp"

namespace strata::ops::cuda {
namespace {

cudaDataType_t cublas_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kFloat64:
      return CUDA_R_64F;
    case DType::kBfloat16:
      return CUDA_R_16BF;
    default:
      refuse_dtype(dtype);
  }
}

cublasOperation_t library_operation(Transpose transpose) {
  return transpose == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

std::string name_of(cublasLtEpilogue_t epilogue) {
  const std::string_view bias = has_bias(epilogue) ? ", with a bias" : "";
  const std::string_view gelu = !has_pre_activation(epilogue)         ? ""
                                : epilogue == CUBLASLT_EPILOGUE_DGELU ? ", with gelu's gradient"
                                                                      : ", with gelu";
  return fmt::format("{}{}", bias, gelu);
}

std::string text_of(const CublasLtProduct& product) {
  const auto turned = [](Transpose transpose) { return transpose == Transpose::kYes ? "^T" : ""; };
  return fmt::format("a product of {} x {}{} by {} x {}{}, rows {} and {} long, in {}, {} out{}{}",
                     product.m, product.k, turned(product.transpose_a), product.k, product.n,
                     turned(product.transpose_b), product.row_a, product.row_c,
                     strata::name_of(product.operands), strata::name_of(product.result),
                     name_of(product.epilogue),
                     product.accumulate == Accumulate::kAdd ? ", added" : "");
}

std::string choosing(const CublasLtProduct& product) {
  return "choosing a kernel for " + text_of(product);
}

}  // namespace

bool has_pre_activation(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_DGELU;
}

bool has_bias(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

CublasLtProducts::CublasLtProducts(KernelsUsed& kernels)
    : kernels_(kernels), library_("libcublasLt.so." + std::to_string(CUDART_VERSION / 1000)) {
  check(functions_.create(&handle_), "starting cuBLASLt");
}

CublasLtProducts::~CublasLtProducts() {
  static_cast<void>(functions_.destroy(handle_));
}

void CublasLtProducts::check(cublasStatus_t status, const char* what) const {
  if (status != CUBLAS_STATUS_SUCCESS) {
    device::cuda_failed(what, functions_.status_string(status));
  }
}

CublasLtProducts::Owned<cublasLtMatmulDesc_t> CublasLtProducts::desc_of(
    const CublasLtProduct& product) const {
  constexpr const char* kWhat = "describing a product";
  const bool is_double = product.operands == DType::kFloat64;
  const bool is_tf32 =
      product.operands == DType::kFloat32 && product.precision == Float32Products::kTf32;
  const cublasComputeType_t compute = is_double ? CUBLAS_COMPUTE_64F
                                      : is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t raw = nullptr;
  check(functions_.desc_create(&raw, compute, is_double ? CUDA_R_64F : CUDA_R_32F), kWhat);
  Owned<cublasLtMatmulDesc_t> desc(raw, functions_.desc_destroy);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(functions_.desc_set(raw, attribute, &value, sizeof(value)), kWhat);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, library_operation(product.transpose_b));
  set(CUBLASLT_MATMUL_DESC_TRANSB, library_operation(product.transpose_a));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, product.epilogue);
  // The heuristic reads only the alignment of the bias and pre-activation pointers.
  // NOLINTNEXTLINE(performance-no-int-to-ptr): no pointer.
  const void* const aligned = reinterpret_cast<const void*>(std::uintptr_t{kLibraryAlignmentBytes});
  if (has_bias(product.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned);
  }
  if (has_pre_activation(product.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.n);
  }
  return desc;
}

CublasLtProducts::Owned<cublasLtMatrixLayout_t> CublasLtProducts::layout_of(
    DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row) const {
  cublasLtMatrixLayout_t raw = nullptr;
  check(functions_.layout_create(&raw, cublas_type(dtype), static_cast<std::uint64_t>(columns),
                                 static_cast<std::uint64_t>(rows), row),
        "describing a product's tensor");
  return {raw, functions_.layout_destroy};
}

std::optional<cublasLtMatmulAlgo_t> CublasLtProducts::algorithm_of(const CublasLtProduct& product,
                                                                   const Prepared& parts) const {
  const std::string what = choosing(product);
  const char* const text = what.c_str();
  cublasLtMatmulPreference_t raw = nullptr;
  check(functions_.preference_create(&raw), text);
  const Owned<cublasLtMatmulPreference_t> preference(raw, functions_.preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(functions_.preference_set(raw, attribute, &value, sizeof(value)), text);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{CudaResources::kWorkspaceBytes});
  // Split-k in place would add parts in the order in which they are done.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{product.split_k == Switch::kOn ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                   : CUBLASLT_REDUCTION_SCHEME_NONE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kLibraryAlignmentBytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kLibraryAlignmentBytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kLibraryAlignmentBytes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kLibraryAlignmentBytes);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      functions_.heuristic(handle_, parts.desc.get(), parts.b.get(), parts.a.get(), parts.c.get(),
                           parts.c.get(), raw, 1, &result, &count);
  // The header does not say which of the two means an unsupported epilogue.
  const auto says_none = [&](cublasStatus_t said) {
    return said == CUBLAS_STATUS_NOT_SUPPORTED ||
           (said == CUBLAS_STATUS_INVALID_VALUE && product.epilogue != CUBLASLT_EPILOGUE_DEFAULT);
  };
  if (says_none(status)) {
    return std::nullopt;
  }
  check(status, text);
  if (count == 0 || says_none(result.state)) {
    return std::nullopt;
  }
  check(result.state, text);
  return result.algo;
}

std::string CublasLtProducts::kernel_text(const cublasLtMatmulAlgo_t& algorithm) const {
  std::string text = "cuBLASLt's";
  const auto add = [&](const char* name, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    std::uint32_t value = 0;  // some attributes have two bytes of it
    std::size_t written = 0;
    if (functions_.algorithm_get(&algorithm, attribute, &value, sizeof(value), &written) !=
        CUBLAS_STATUS_SUCCESS) {
      std::uint16_t half = 0;
      if (functions_.algorithm_get(&algorithm, attribute, &half, sizeof(half), &written) !=
          CUBLAS_STATUS_SUCCESS) {
        return;  // not in this version
      }
      value = half;
    }
    text += fmt::format(" {} {}", name, value);
  };
  add("algorithm", CUBLASLT_ALGO_CONFIG_ID);
  add("tile", CUBLASLT_ALGO_CONFIG_TILE_ID);
  add("stages", CUBLASLT_ALGO_CONFIG_STAGES_ID);
  add("split", CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  add("reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  add("swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
  add("option", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
  add("shape", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
  add("cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  return text;
}

const CublasLtProducts::Prepared& CublasLtProducts::prepared(const CublasLtProduct& product) {
  const auto found = prepared_.find(product);
  if (found != prepared_.end()) {
    return found->second;
  }
  const bool transposed_a = product.transpose_a == Transpose::kYes;
  const bool transposed_b = product.transpose_b == Transpose::kYes;
  const std::int64_t row_b = transposed_b ? product.k : product.n;
  Prepared parts{desc_of(product),
                 layout_of(product.operands, transposed_b ? product.n : product.k, row_b, row_b),
                 layout_of(product.operands, transposed_a ? product.k : product.m,
                           transposed_a ? product.m : product.k, product.row_a),
                 layout_of(product.result, product.m, product.n, product.row_c),
                 {}};
  parts.algorithm = algorithm_of(product, parts);
  if (parts.algorithm) {
    kernels_[text_of(product)] = kernel_text(*parts.algorithm);
  }
  return prepared_.emplace(product, std::move(parts)).first->second;
}

bool CublasLtProducts::has(const CublasLtProduct& product) {
  return prepared(product).algorithm.has_value();
}

void CublasLtProducts::multiply(const CublasLtProduct& product, const ProductAddresses& at,
                                std::byte* workspace, cudaStream_t stream) {
  const Prepared& parts = prepared(product);
  if (!parts.algorithm) {
    check(CUBLAS_STATUS_NOT_SUPPORTED, choosing(product).c_str());
  }
  if (has_bias(product.epilogue)) {
    check(functions_.desc_set(parts.desc.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at.bias,
                              sizeof(at.bias)),
          "describing a bias");
  }
  if (has_pre_activation(product.epilogue)) {
    check(functions_.desc_set(parts.desc.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                              &at.pre_activation, sizeof(at.pre_activation)),
          "describing a pre-activation");
  }
  const bool adds = product.accumulate == Accumulate::kAdd;
  const float one = 1.0F;
  const float beta = adds ? 1.0F : 0.0F;
  const double double_one = 1.0;
  const double double_beta = adds ? 1.0 : 0.0;
  const bool is_double = product.operands == DType::kFloat64;
  const void* const alpha_at = is_double ? static_cast<const void*>(&double_one) : &one;
  const void* const beta_at = is_double ? static_cast<const void*>(&double_beta) : &beta;
  check(functions_.matmul(handle_, parts.desc.get(), alpha_at, at.b, parts.b.get(), at.a,
                          parts.a.get(), beta_at, at.addend, parts.c.get(), at.c, parts.c.get(),
                          &*parts.algorithm, workspace, CudaResources::kWorkspaceBytes, stream),
        "a product");
}

}  // namespace strata::ops::cuda

#endif
