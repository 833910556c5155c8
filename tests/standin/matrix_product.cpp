#include "matrix_product.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <vector>

#include <cuda_bf16.h>

#include "record.hpp"

namespace standin {
namespace {

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

/// A number with 11 bits, as tensor cores take it.
template <typename C>
C tf32(C value) {
  constexpr std::uint32_t kDropped = (1U << 13) - 1;
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<C>(std::bit_cast<float>((bits + kDropped / 2 + 1) & ~kDropped));
}

/// tanh of GELU, and what it is the tanh of.
constexpr double kGeluSlope = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

template <typename C>
C gelu_tanh(C x) {
  return std::tanh(static_cast<C>(kGeluSlope) * (x + static_cast<C>(kGeluCubic) * x * x * x));
}

template <typename C>
C gelu(C x) {
  return x * (C{1} + gelu_tanh(x)) / C{2};
}

template <typename C>
C gelu_gradient(C x) {
  const C t = gelu_tanh(x);
  const C slope = static_cast<C>(kGeluSlope) * (C{1} + static_cast<C>(3.0 * kGeluCubic) * x * x);
  return (C{1} + t + x * (C{1} - t * t) * slope) / C{2};
}

/// op(matrix), column after column.
template <typename C>
std::vector<C> unpacked(const MatrixLayout& layout, const void* at, cublasOperation_t operation) {
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

/// From a sum to an element of the result.
template <typename C>
void finish(const MatrixProduct& product, C sum, std::size_t row, std::size_t column) {
  const ProductDescription& how = product.how;
  const cudaDataType_t type = product.d.type;
  const std::size_t place = column * product.d.stride + row;
  const std::size_t aux_place = column * static_cast<std::size_t>(how.aux_stride) + row;
  C value = static_cast<C>(product.alpha) * sum;
  if (product.beta != 0.0) {
    value += static_cast<C>(product.beta) * load<C>(product.c_at, type, place);
  }
  if (has_bias(how.epilogue)) {
    value += load<C>(how.bias, type, row);
  }
  if (how.epilogue == CUBLASLT_EPILOGUE_DGELU) {
    value *= gelu_gradient(load<C>(how.aux, type, aux_place));
  } else if (has_aux(how.epilogue)) {
    store(value, how.aux, type, aux_place);
    value = gelu(value);
  }
  store(value, product.d_at, type, place);
}

template <typename C>
void multiply(const MatrixProduct& product) {
  const ProductDescription& how = product.how;
  std::vector<C> left = unpacked<C>(product.a, product.a_at, how.transpose_a);
  std::vector<C> right = unpacked<C>(product.b, product.b_at, how.transpose_b);
  if (how.compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
    std::ranges::transform(left, left.begin(), tf32<C>);
    std::ranges::transform(right, right.begin(), tf32<C>);
  }
  const std::size_t rows = product.d.rows;
  const std::size_t summed = product.summed();
  std::vector<C> sums(rows);
  for (std::size_t column = 0; column < product.d.columns; ++column) {
    std::ranges::fill(sums, C{0});
    for (std::size_t k = 0; k < summed; ++k) {
      const C factor = right[column * summed + k];
      const C* const from = &left[k * rows];
      for (std::size_t row = 0; row < rows; ++row) {
        sums[row] += from[row] * factor;
      }
    }
    for (std::size_t row = 0; row < rows; ++row) {
      finish(product, sums[row], row, column);
    }
  }
}

std::size_t size_of(cudaDataType_t type) {
  return type == CUDA_R_64F ? sizeof(double)
                            : (type == CUDA_R_16BF ? sizeof(__nv_bfloat16) : sizeof(float));
}

bool epilogue_is_allowed(const ProductDescription& how, const MatrixLayout& a,
                         const MatrixLayout& d) {
  if (how.epilogue == CUBLASLT_EPILOGUE_DEFAULT) {
    return true;
  }
  const bool is_known = has_bias(how.epilogue) || has_aux(how.epilogue);
  const bool types = how.compute != CUBLAS_COMPUTE_64F && d.type == a.type;
  const bool bias = !has_bias(how.epilogue) || how.bias != nullptr;
  constexpr std::int64_t kAuxMultiple = 8;
  const bool aux =
      !has_aux(how.epilogue) || (how.aux != nullptr && how.aux_stride % kAuxMultiple == 0 &&
                                 how.aux_stride >= static_cast<std::int64_t>(d.rows));
  return is_known && types && bias && aux;
}

}  // namespace

std::size_t MatrixLayout::bytes() const {
  return rows * columns == 0 ? 0 : ((columns - 1) * stride + rows) * size_of(type);
}

bool has_aux(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_DGELU;
}

bool has_bias(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

double scalar(const void* at, cudaDataType_t type) {
  return load<double>(at, type, 0);
}

bool MatrixProduct::is_allowed() const {
  const bool is_double = how.compute == CUBLAS_COMPUTE_64F;
  const bool transposed_a = how.transpose_a != CUBLAS_OP_N;
  const bool transposed_b = how.transpose_b != CUBLAS_OP_N;
  const bool shapes = (transposed_a ? a.columns : a.rows) == d.rows &&
                      (transposed_b ? b.rows : b.columns) == d.columns &&
                      summed() == (transposed_b ? b.columns : b.rows);
  // The library's table of types, of those that strata has.
  const bool types =
      is_double ? a.type == CUDA_R_64F && d.type == CUDA_R_64F
                : a.type != CUDA_R_64F &&
                      (d.type == a.type || (a.type == CUDA_R_16BF && d.type == CUDA_R_32F));
  const bool scale = how.scale == (is_double ? CUDA_R_64F : CUDA_R_32F);
  return shapes && types && a.type == b.type && scale && epilogue_is_allowed(how, a, d);
}

std::string MatrixProduct::text() const {
  const char* const type = d.type == CUDA_R_64F    ? "float64"
                           : d.type == CUDA_R_16BF ? "bfloat16"
                                                   : "float32";
  char text[128];
  std::snprintf(text, sizeof(text), "cuBLASLt product %zu x %zu x %zu %s%s", d.columns, d.rows,
                summed(), type, a.type == CUDA_R_16BF && d.type != a.type ? " of bfloat16" : "");
  return text;
}

void MatrixProduct::touch_all() const {
  touch(a_at, a.bytes());
  touch(b_at, b.bytes());
  if (beta != 0.0) {
    touch(c_at, d.bytes());
  }
  if (has_bias(how.epilogue)) {
    touch(how.bias, d.rows * size_of(d.type));
  }
  if (how.epilogue == CUBLASLT_EPILOGUE_DGELU) {
    touch(how.aux, d.bytes());
  } else if (has_aux(how.epilogue)) {
    touch_written(how.aux, d.bytes());
  }
  touch_written(d_at, d.bytes());
}

void MatrixProduct::run() const {
  if (standin_records() != 0) {
    touch_all();
    return;
  }
  if (how.compute == CUBLAS_COMPUTE_64F) {
    multiply<double>(*this);
  } else {
    multiply<float>(*this);
  }
}

}  // namespace standin
