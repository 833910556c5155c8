#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <cublasLt.h>

// What the stand-in for cuBLASLt computes.
namespace standin {

struct MatrixLayout {
  cudaDataType_t type;
  std::size_t rows;
  std::size_t columns;
  std::size_t stride;  ///< from one column to the next

  /// From the first element to behind the last.
  [[nodiscard]] std::size_t bytes() const;
};

struct ProductDescription {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* aux = nullptr;
  std::int64_t aux_stride = 0;
};

/// d = epilogue(alpha op(a) op(b) + beta c), column-major; c and d have one layout. A sum is taken
/// over k in order, in the type of computation, so its bits follow from k alone.
struct MatrixProduct {
  ProductDescription how;
  MatrixLayout a;
  MatrixLayout b;
  MatrixLayout d;
  double alpha = 1.0;
  double beta = 0.0;
  const void* a_at = nullptr;
  const void* b_at = nullptr;
  const void* c_at = nullptr;
  void* d_at = nullptr;

  /// Whether shapes, types and epilogue are such as the library's documentation allows.
  [[nodiscard]] bool is_allowed() const;
  [[nodiscard]] std::size_t summed() const {
    return how.transpose_a == CUBLAS_OP_N ? a.columns : a.rows;
  }
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(d.rows * d.columns * summed());
  }
  /// Row-major, as strata sees it.
  [[nodiscard]] std::string text() const;
  void run() const;

 private:
  void touch_all() const;
};

/// A factor as it is given, of the scale's type.
[[nodiscard]] double scalar(const void* at, cudaDataType_t type);

/// Whether the epilogue reads or writes the argument of GELU.
[[nodiscard]] bool has_aux(cublasLtEpilogue_t epilogue);
[[nodiscard]] bool has_bias(cublasLtEpilogue_t epilogue);

}  // namespace standin
