#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>

#include <cublasLt.h>

#include "library_work.hpp"
#include "matrix_product.hpp"
#include "record.hpp"

// A stand-in for cuBLASLt: the calls that strata makes, on column-major matrices.

namespace {

using standin::has_aux;
using standin::has_bias;
using standin::MatrixProduct;
using Layout = standin::MatrixLayout;
using Description = standin::ProductDescription;

struct Preference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_bytes = 256;
};

template <typename Handle, typename Ours>
Handle handle_of(Ours* ours) {
  return reinterpret_cast<Handle>(ours);
}
const Layout& ours(cublasLtMatrixLayout_t handle) {
  return *reinterpret_cast<const Layout*>(handle);
}
Description& ours(cublasLtMatmulDesc_t handle) {
  return *reinterpret_cast<Description*>(handle);
}
Preference& ours(cublasLtMatmulPreference_t handle) {
  return *reinterpret_cast<Preference*>(handle);
}

template <typename T>
cublasStatus_t set(T& value, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&value, from, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

std::map<cublasLtEpilogue_t, int> put_so_far;
int choices_so_far = 0;

/// A library has no kernel for some products with an epilogue, and leaves open which; this one has
/// none where it sums over an odd number of elements.
bool has_kernel(const MatrixProduct& product) {
  return product.how.epilogue == CUBLASLT_EPILOGUE_DEFAULT || product.summed() % 2 == 0;
}

/// What strata promises for every address.
constexpr std::uintptr_t kAlignmentBytes = 16;

bool is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kAlignmentBytes == 0;
}

/// Whether what the heuristic may read of the addresses is what strata promises.
bool is_aligned(const Description& how) {
  return (!has_bias(how.epilogue) || is_aligned(how.bias)) &&
         (!has_aux(how.epilogue) || is_aligned(how.aux));
}

bool overlap(const void* a, const void* b, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(a);
  const auto* const second = static_cast<const std::byte*>(b);
  return std::less<>()(first, second + bytes) && std::less<>()(second, first + bytes);
}

}  // namespace

extern "C" {

// Of the stand-in alone.
/// Products with an epilogue that were put on streams.
int standin_cublas_lt_products(cublasLtEpilogue_t epilogue) {
  return put_so_far[epilogue];
}
/// How often a kernel was asked for.
int standin_cublas_lt_choices() {
  return choices_so_far;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* lightHandle) {
  *lightHandle = handle_of<cublasLtHandle_t>(new std::byte());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) {
  delete reinterpret_cast<std::byte*>(lightHandle);
  return CUBLAS_STATUS_SUCCESS;
}

std::size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "the operation completed successfully";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the requested functionality is not supported";
    default:
      return "an invalid value was passed";
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matLayout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  if ((type != CUDA_R_32F && type != CUDA_R_64F && type != CUDA_R_16BF) ||
      ld < static_cast<std::int64_t>(rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *matLayout =
      handle_of<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, static_cast<std::size_t>(ld)});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout) {
  delete &ours(matLayout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmulDesc,
                                        cublasComputeType_t computeType, cudaDataType_t scaleType) {
  if (computeType != CUBLAS_COMPUTE_32F && computeType != CUBLAS_COMPUTE_64F &&
      computeType != CUBLAS_COMPUTE_32F_FAST_TF32) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  *matmulDesc = handle_of<cublasLtMatmulDesc_t>(new Description{computeType, scaleType});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc) {
  delete &ours(matmulDesc);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, const void* buf,
                                              std::size_t sizeInBytes) {
  Description& description = ours(matmulDesc);
  switch (attr) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(description.transpose_a, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(description.transpose_b, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(description.epilogue, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(description.bias, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(description.aux, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(description.aux_stride, buf, sizeInBytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* pref) {
  *pref = handle_of<cublasLtMatmulPreference_t>(new Preference());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
  delete &ours(pref);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void* buf, std::size_t sizeInBytes) {
  Preference& preference = ours(pref);
  std::uint32_t alignment_bytes = 0;
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  switch (attr) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.workspace_bytes, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference.reduction_mask, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      status = set(alignment_bytes, buf, sizeInBytes);
      preference.alignment_bytes = std::min(preference.alignment_bytes, alignment_bytes);
      return status;
    default:
      return status;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*lightHandle*/, cublasLtMatmulDesc_t operationDesc,
    cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc,
    cublasLtMatrixLayout_t Ddesc, cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int* returnAlgoCount) {
  *returnAlgoCount = 0;
  ++choices_so_far;
  const MatrixProduct product{
      .how = ours(operationDesc), .a = ours(Adesc), .b = ours(Bdesc), .d = ours(Ddesc)};
  // What the laws of numbers ask for: no split of the sum but in a fixed order, no choice by
  // addresses.
  const std::uint32_t reductions = ours(preference).reduction_mask;
  if (requestedAlgoCount < 1 || Cdesc != Ddesc ||
      (reductions != CUBLASLT_REDUCTION_SCHEME_NONE &&
       reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ||
      ours(preference).alignment_bytes != kAlignmentBytes || !product.is_allowed() ||
      !is_aligned(product.how)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!has_kernel(product)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  heuristicResultsArray[0] = {};
  heuristicResultsArray[0].state = CUBLAS_STATUS_SUCCESS;
  *returnAlgoCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* /*algo*/,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr,
                                                    void* buf, std::size_t sizeInBytes,
                                                    std::size_t* sizeWritten) {
  const bool is_half =
      attr == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attr == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  const std::size_t bytes = is_half ? sizeof(std::uint16_t) : sizeof(std::uint32_t);
  if (sizeInBytes != bytes) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memset(buf, 0, bytes);
  *sizeWritten = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*lightHandle*/, cublasLtMatmulDesc_t computeDesc,
                              const void* alpha, const void* A, cublasLtMatrixLayout_t Adesc,
                              const void* B, cublasLtMatrixLayout_t Bdesc, const void* beta,
                              const void* C, cublasLtMatrixLayout_t Cdesc, void* D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t* /*algo*/,
                              void* workspace, std::size_t /*workspaceSizeInBytes*/,
                              cudaStream_t stream) {
  const Description& how = ours(computeDesc);
  const MatrixProduct product{how,
                              ours(Adesc),
                              ours(Bdesc),
                              ours(Ddesc),
                              standin::scalar(alpha, how.scale),
                              standin::scalar(beta, how.scale),
                              A,
                              B,
                              C,
                              D};
  // In place C is D; elsewhere what is written lies apart from what is read.
  const std::size_t bytes = product.d.bytes();
  const bool apart =
      (C == D || !overlap(C, D, bytes)) &&
      (!has_aux(how.epilogue) ||
       (!overlap(how.aux, D, bytes) && (product.beta == 0.0 || !overlap(how.aux, C, bytes))));
  if (!apart || Cdesc != Ddesc || !is_aligned(A) || !is_aligned(B) || !is_aligned(C) ||
      !is_aligned(D) || !is_aligned(workspace) || !is_aligned(how) || !product.is_allowed() ||
      !has_kernel(product)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  standin_describe(product.text().c_str(), product.flops());
  if (!standin::put_library_work(stream, [product] { product.run(); })) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  ++put_so_far[how.epilogue];
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
