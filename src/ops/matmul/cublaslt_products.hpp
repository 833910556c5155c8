#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "strata/core/dtype.hpp"
#include "strata/device/shared_library.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/matmul.hpp"

// Included by .cu files alone.
namespace strata::ops::cuda {

/// What follows from a product's shapes and options; the choice of cuBLASLt's kernel, and with it
/// the bits of the result, follows from this alone.
struct CublasLtProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType operands = DType::kFloat32;
  DType result = DType::kFloat32;
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  Accumulate accumulate = Accumulate::kOverwrite;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  /// Of float32 operands.
  Float32Products precision = Float32Products::kFull;

  friend auto operator<=>(const CublasLtProduct&, const CublasLtProduct&) = default;
};

/// Where a product's row-major tensors lie, all at multiples of kLibraryAlignmentBytes.
struct ProductAddresses {
  std::byte* a = nullptr;
  std::byte* b = nullptr;
  /// What the product is added to, c or another tensor like it; read where it accumulates.
  std::byte* addend = nullptr;
  /// Read where the epilogue has one.
  std::byte* bias = nullptr;
  /// Like c: what gelu is applied to, written by its epilogue and read by its gradient's.
  std::byte* pre_activation = nullptr;
  std::byte* c = nullptr;
};

/// Whether an epilogue is gelu, its argument kept, or gelu's gradient.
[[nodiscard]] bool has_pre_activation(cublasLtEpilogue_t epilogue);
[[nodiscard]] bool has_bias(cublasLtEpilogue_t epilogue);

/// cuBLASLt, opened when it is first used, and the products that it was asked for so far.
class CublasLtProducts {
 public:
  /// What the rows of a pre-activation are a multiple of, in elements.
  static constexpr std::int64_t kPreActivationMultiple = 8;

  /// For the device that the calling thread works on. Throws: Error(kPeer) where the library is not
  /// found or fails.
  CublasLtProducts();
  ~CublasLtProducts();
  CublasLtProducts(const CublasLtProducts&) = delete;
  CublasLtProducts& operator=(const CublasLtProducts&) = delete;

  /// Whether the library has a kernel for a product; it is asked once.
  [[nodiscard]] bool has(const CublasLtProduct& product);

  /// Puts c = epilogue(op(a) op(b)), or epilogue(op(a) op(b) + addend), on the stream. `workspace`
  /// has CudaResources::kWorkspaceBytes. Throws: Error(kPeer) where the library has no kernel for
  /// it or fails.
  void multiply(const CublasLtProduct& product, const ProductAddresses& at, std::byte* workspace,
                cudaStream_t stream);

 private:
  /// The library's functions that are called here.
  struct Functions {
    decltype(&cublasLtCreate) create = nullptr;
    decltype(&cublasLtDestroy) destroy = nullptr;
    decltype(&cublasLtGetStatusString) status_string = nullptr;
    decltype(&cublasLtMatmul) matmul = nullptr;
    decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
    decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  };
  /// A descriptor of the library's with the function that destroys it.
  template <typename Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;
  /// A product as the library sees it: column-major, so with b before a.
  struct Prepared {
    Owned<cublasLtMatmulDesc_t> desc;
    Owned<cublasLtMatrixLayout_t> b;
    Owned<cublasLtMatrixLayout_t> a;
    Owned<cublasLtMatrixLayout_t> c;
    /// None where the library has none.
    std::optional<cublasLtMatmulAlgo_t> algorithm;
  };

  void check(cublasStatus_t status, const char* what) const;
  [[nodiscard]] const Prepared& prepared(const CublasLtProduct& product);
  [[nodiscard]] Owned<cublasLtMatmulDesc_t> desc_of(const CublasLtProduct& product) const;
  /// A stored matrix of row-major `rows` x `columns`.
  [[nodiscard]] Owned<cublasLtMatrixLayout_t> layout_of(DType dtype, std::int64_t rows,
                                                        std::int64_t columns) const;
  [[nodiscard]] std::optional<cublasLtMatmulAlgo_t> algorithm_of(const CublasLtProduct& product,
                                                                 const Prepared& parts) const;

  device::SharedLibrary library_;
  Functions functions_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<CublasLtProduct, Prepared> prepared_;
};

}  // namespace strata::ops::cuda
