#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "strata/core/dtype.hpp"
#include "strata/device/shared_library.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/matmul.hpp"

// Included only where CUDA is built.
namespace strata::ops::cuda {

/// A product's shapes and options; they alone determine cuBLASLt's kernel and so the bits of the
/// result.
struct CublasLtProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  /// Elements from one row of a, and of c, to the next.
  std::int64_t row_a = 0;
  std::int64_t row_c = 0;
  DType operands = DType::kFloat32;
  DType result = DType::kFloat32;
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  Accumulate accumulate = Accumulate::kOverwrite;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  /// Of float32 operands.
  Float32Products precision = Float32Products::kFull;
  Switch split_k = Switch::kOff;

  friend auto operator<=>(const CublasLtProduct&, const CublasLtProduct&) = default;
};

/// Addresses of a product's row-major tensors, aligned to kLibraryAlignmentBytes.
struct ProductAddresses {
  std::byte* a = nullptr;
  std::byte* b = nullptr;
  /// The tensor that the product is added to, c or one like it; read with kAdd.
  std::byte* addend = nullptr;
  /// Read by epilogues with a bias.
  std::byte* bias = nullptr;
  /// Like c: GELU's argument, written by GELU's epilogue and read by its gradient's.
  std::byte* pre_activation = nullptr;
  std::byte* c = nullptr;
};

/// Whether an epilogue is GELU that stores its argument, or GELU's gradient.
[[nodiscard]] bool has_pre_activation(cublasLtEpilogue_t epilogue);
[[nodiscard]] bool has_bias(cublasLtEpilogue_t epilogue);

/// cuBLASLt, loaded at first use, with a cache of products.
class CublasLtProducts {
 public:
  /// Row lengths of a pre-activation are multiples of this many elements.
  static constexpr std::int64_t kPreActivationMultiple = 8;

  /// For the calling thread's current device. Writes the kernels of products into `kernels`.
  /// Throws: Error(kPeer) where the library is not found or fails.
  explicit CublasLtProducts(KernelsUsed& kernels);
  ~CublasLtProducts();
  CublasLtProducts(const CublasLtProducts&) = delete;
  CublasLtProducts& operator=(const CublasLtProducts&) = delete;

  /// Whether the library has a kernel for a product; cached.
  [[nodiscard]] bool has(const CublasLtProduct& product);

  /// Enqueues c = epilogue(op(a) op(b)), or epilogue(op(a) op(b) + addend). `workspace` has
  /// CudaResources::kWorkspaceBytes. Throws: Error(kPeer) where the library has no kernel for it or
  /// fails.
  void multiply(const CublasLtProduct& product, const ProductAddresses& at, std::byte* workspace,
                cudaStream_t stream);

 private:
  /// The library's entry points.
  struct Functions {
    const device::SharedLibrary& library;

    decltype(&cublasLtCreate) create = library.find("cublasLtCreate");
    decltype(&cublasLtDestroy) destroy = library.find("cublasLtDestroy");
    decltype(&cublasLtGetStatusString) status_string = library.find("cublasLtGetStatusString");
    decltype(&cublasLtMatmul) matmul = library.find("cublasLtMatmul");
    decltype(&cublasLtMatmulDescCreate) desc_create = library.find("cublasLtMatmulDescCreate");
    decltype(&cublasLtMatmulDescDestroy) desc_destroy = library.find("cublasLtMatmulDescDestroy");
    decltype(&cublasLtMatmulDescSetAttribute) desc_set =
        library.find("cublasLtMatmulDescSetAttribute");
    decltype(&cublasLtMatrixLayoutCreate) layout_create =
        library.find("cublasLtMatrixLayoutCreate");
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy =
        library.find("cublasLtMatrixLayoutDestroy");
    decltype(&cublasLtMatmulPreferenceCreate) preference_create =
        library.find("cublasLtMatmulPreferenceCreate");
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy =
        library.find("cublasLtMatmulPreferenceDestroy");
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set =
        library.find("cublasLtMatmulPreferenceSetAttribute");
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic =
        library.find("cublasLtMatmulAlgoGetHeuristic");
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_get =
        library.find("cublasLtMatmulAlgoConfigGetAttribute");
  };
  /// An owning handle of a library descriptor.
  template <typename Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;
  /// A product in the library's column-major order: b before a.
  struct Prepared {
    Owned<cublasLtMatmulDesc_t> desc;
    Owned<cublasLtMatrixLayout_t> b;
    Owned<cublasLtMatrixLayout_t> a;
    Owned<cublasLtMatrixLayout_t> c;
    /// Empty where the library has none.
    std::optional<cublasLtMatmulAlgo_t> algorithm;
  };

  void check(cublasStatus_t status, const char* what) const;
  [[nodiscard]] const Prepared& prepared(const CublasLtProduct& product);
  [[nodiscard]] Owned<cublasLtMatmulDesc_t> desc_of(const CublasLtProduct& product) const;
  /// A stored matrix of row-major `rows` x `columns`; `row` elements from one row to the next.
  [[nodiscard]] Owned<cublasLtMatrixLayout_t> layout_of(DType dtype, std::int64_t rows,
                                                        std::int64_t columns,
                                                        std::int64_t row) const;
  [[nodiscard]] std::optional<cublasLtMatmulAlgo_t> algorithm_of(const CublasLtProduct& product,
                                                                 const Prepared& parts) const;

  /// As in "cuBLASLt's algorithm 66 tile 20 stages 15".
  [[nodiscard]] std::string kernel_text(const cublasLtMatmulAlgo_t& algorithm) const;

  KernelsUsed& kernels_;
  device::SharedLibrary library_;
  Functions functions_{library_};
  cublasLtHandle_t handle_ = nullptr;
  std::map<CublasLtProduct, Prepared> prepared_;
};

}  // namespace strata::ops::cuda
