#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include <cublasLt.h>
#include <cuda_bf16.h>

#include "library_work.hpp"

// A stand-in for cuBLASLt: the calls that strata makes, on column-major matrices. A sum is taken
// over k in order, in the type of computation, so its bits follow from k alone.

namespace {

struct Layout {
  cudaDataType_t type;
  std::size_t rows;
  std::size_t columns;
  std::size_t stride;  ///< from one column to the next
};

struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

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

/// Element `index` of a matrix of a type, in the type of computation.
template <typename C>
C load(const void* at, cudaDataType_t type, std::size_t index) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<C>(static_cast<const double*>(at)[index]);
    case CUDA_R_16BF:
      return static_cast<C>(__bfloat162float(static_cast<const __nv_bfloat16*>(at)[index]));
    default:
      return static_cast<C>(static_cast<const float*>(at)[index]);
  }
}

template <typename C>
void store(C value, void* at, cudaDataType_t type, std::size_t index) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(at)[index] = static_cast<double>(value);
      break;
    case CUDA_R_16BF:
      static_cast<__nv_bfloat16*>(at)[index] = __float2bfloat16_rn(static_cast<float>(value));
      break;
    default:
      static_cast<float*>(at)[index] = static_cast<float>(value);
  }
}

/// One call of cublasLtMatmul().
struct Product {
  Description how;
  Layout a;
  Layout b;
  Layout c;
  double alpha;
  double beta;
  const void* a_at;
  const void* b_at;
  void* c_at;

  [[nodiscard]] std::size_t summed() const {
    return how.transpose_a == CUBLAS_OP_N ? a.columns : a.rows;
  }

  /// A number with 11 bits, as tensor cores take it.
  template <typename C>
  static C tf32(C value) {
    constexpr std::uint32_t kDropped = (1U << 13) - 1;
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    return static_cast<C>(std::bit_cast<float>((bits + kDropped / 2 + 1) & ~kDropped));
  }

  /// op(matrix), column after column.
  template <typename C>
  static std::vector<C> unpacked(const Layout& layout, const void* at,
                                 cublasOperation_t operation) {
    std::vector<C> to(layout.rows * layout.columns);
    for (std::size_t column = 0; column < layout.columns; ++column) {
      for (std::size_t row = 0; row < layout.rows; ++row) {
        const std::size_t place =
            operation == CUBLAS_OP_N ? column * layout.rows + row : row * layout.columns + column;
        to[place] = load<C>(at, layout.type, column * layout.stride + row);
      }
    }
    return to;
  }

  template <typename C>
  void run() const {
    std::vector<C> left = unpacked<C>(a, a_at, how.transpose_a);
    std::vector<C> right = unpacked<C>(b, b_at, how.transpose_b);
    if (how.compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
      std::ranges::transform(left, left.begin(), tf32<C>);
      std::ranges::transform(right, right.begin(), tf32<C>);
    }
    const std::size_t rows = c.rows;
    std::vector<C> sums(rows);
    for (std::size_t column = 0; column < c.columns; ++column) {
      std::ranges::fill(sums, C{0});
      for (std::size_t k = 0; k < summed(); ++k) {
        const C factor = right[column * summed() + k];
        const C* const from = &left[k * rows];
        for (std::size_t row = 0; row < rows; ++row) {
          sums[row] += from[row] * factor;
        }
      }
      for (std::size_t row = 0; row < rows; ++row) {
        finish(sums[row], row, column * c.stride + row);
      }
    }
  }

  template <typename C>
  void finish(C sum, std::size_t row, std::size_t place) const {
    C value = static_cast<C>(alpha) * sum;
    if (beta != 0.0) {
      value += static_cast<C>(beta) * load<C>(c_at, c.type, place);
    }
    if (how.epilogue == CUBLASLT_EPILOGUE_BIAS) {
      value += load<C>(how.bias, c.type, row);
    }
    store(value, c_at, c.type, place);
  }
};

void run_product(const Product& product) {
  if (product.how.compute == CUBLAS_COMPUTE_64F) {
    product.run<double>();
  } else {
    product.run<float>();
  }
}

bool fits(const Description& how, const Layout& a, const Layout& b, const Layout& c) {
  const bool is_double = how.compute == CUBLAS_COMPUTE_64F;
  const bool turned_a = how.transpose_a != CUBLAS_OP_N;
  const bool turned_b = how.transpose_b != CUBLAS_OP_N;
  const bool shapes = (turned_a ? a.columns : a.rows) == c.rows &&
                      (turned_b ? b.rows : b.columns) == c.columns &&
                      (turned_a ? a.rows : a.columns) == (turned_b ? b.columns : b.rows);
  // The library's table of types, of those that strata has.
  const bool types =
      is_double ? a.type == CUDA_R_64F && c.type == CUDA_R_64F
                : a.type != CUDA_R_64F &&
                      (c.type == a.type || (a.type == CUDA_R_16BF && c.type == CUDA_R_32F));
  const bool scale = how.scale == (is_double ? CUDA_R_64F : CUDA_R_32F);
  const bool epilogue = how.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                        (how.epilogue == CUBLASLT_EPILOGUE_BIAS && !is_double && c.type == a.type &&
                         how.bias != nullptr);
  return shapes && types && a.type == b.type && scale && epilogue;
}

/// What strata promises for every address.
constexpr std::uintptr_t kAlignmentBytes = 16;

bool is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kAlignmentBytes == 0;
}

}  // namespace

extern "C" {

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
  // What the laws of numbers ask for: no split of the sum, no choice by addresses.
  if (requestedAlgoCount < 1 || Cdesc != Ddesc ||
      ours(preference).reduction_mask != CUBLASLT_REDUCTION_SCHEME_NONE ||
      ours(preference).alignment_bytes != kAlignmentBytes ||
      !fits(ours(operationDesc), ours(Adesc), ours(Bdesc), ours(Cdesc))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  heuristicResultsArray[0] = {};
  heuristicResultsArray[0].state = CUBLAS_STATUS_SUCCESS;
  *returnAlgoCount = 1;
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
  if (C != D || Cdesc != Ddesc || !is_aligned(A) || !is_aligned(B) || !is_aligned(D) ||
      !is_aligned(workspace) || !is_aligned(how.bias) ||
      !fits(how, ours(Adesc), ours(Bdesc), ours(Ddesc))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Product product{how,
                        ours(Adesc),
                        ours(Bdesc),
                        ours(Ddesc),
                        load<double>(alpha, how.scale, 0),
                        load<double>(beta, how.scale, 0),
                        A,
                        B,
                        D};
  return standin::put_library_work(stream, [product] { run_product(product); })
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
