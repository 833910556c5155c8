#pragma once

#include <cstdint>
#include <cstring>

#include <cuda_bf16.h>

// Tensor core instructions (mma.sync m16n8k16, ldmatrix, cp.async) for compute capability 8.0 and
// later. All 32 lanes of a warp call these together. A lane holds its fragment of a matrix in
// registers, each with two neighbours of a row (of a column, in a right factor), the first in the
// lower half. With g = lane / 4 and t = lane % 4:
//
//   left factor, 16 x 16   pairs[i]: row g + 8 (i % 2), columns 2 t + 8 (i / 2) and the next
//   right factor, 16 x 8   pairs[i]: column g, rows 2 t + 8 i and the next
//   sums, 16 x 8           sums[i]:  row g + 8 (i / 2), column 2 t + i % 2
//
// Two adjacent accumulators, rounded, are therefore a left factor. Source: PTX ISA, "Matrix
// fragments for mma.m16n8k16 with floating point type", "ldmatrix", "cp.async". Included by .cu
// files alone; where nvcc compiles them the functions are PTX, else they are defined elsewhere.
namespace strata::ops::cuda {

struct LeftMatrix {
  std::uint32_t pairs[4];
};
struct RightMatrix {
  std::uint32_t pairs[2];
};
struct SumMatrix {
  float sums[4];
};

/// sums += left * right.
__device__ void multiply_add(const LeftMatrix& left, const RightMatrix& right, SumMatrix& sums);

/// Loads four 8 x 8 matrices from shared memory: lane 8 i + r gives the address of row r of matrix
/// i, 16 aligned bytes. pairs[i] becomes elements 2 t and 2 t + 1 of row g of matrix i.
__device__ void load_matrices(const __nv_bfloat16* row, std::uint32_t (&pairs)[4]);

/// The same, transposed: elements g of rows 2 t and 2 t + 1.
__device__ void load_transposed_matrices(const __nv_bfloat16* row, std::uint32_t (&pairs)[4]);

/// Starts an asynchronous copy of 4 or 16 bytes to shared memory, zeros unless `exists`. Both
/// addresses are multiples of kBytes.
template <int kBytes>
__device__ void copy_async(void* shared, const void* source, bool exists);

/// Waits for this thread's copies; other threads see them after a barrier.
__device__ void wait_for_copies();

#ifdef __CUDACC__

__device__ inline void multiply_add(const LeftMatrix& left, const RightMatrix& right,
                                    SumMatrix& sums) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums.sums[0]), "+f"(sums.sums[1]), "+f"(sums.sums[2]), "+f"(sums.sums[3])
      : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
        "r"(right.pairs[0]), "r"(right.pairs[1]));
}

/// A shared memory address for PTX.
__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ inline void load_matrices(const __nv_bfloat16* row, std::uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void load_transposed_matrices(const __nv_bfloat16* row,
                                                std::uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(shared_address(row))
               : "memory");
}

template <int kBytes>
__device__ void copy_async(void* shared, const void* source, bool exists) {
  static_assert(kBytes == 4 || kBytes == 16);
  const int read = exists ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(source), "r"(read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(source), "r"(read)
                 : "memory");
  }
}

__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" : : : "memory");
}

#endif

/// Packs two numbers, each rounded to nearest, ties to even.
__device__ inline std::uint32_t rounded_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

/// The left factor of two accumulators, columns 0 to 7 and 8 to 15, rounded.
__device__ inline LeftMatrix rounded_left(const SumMatrix& first, const SumMatrix& second) {
  return {{rounded_pair(first.sums[0], first.sums[1]), rounded_pair(first.sums[2], first.sums[3]),
           rounded_pair(second.sums[0], second.sums[1]),
           rounded_pair(second.sums[2], second.sums[3])}};
}

}  // namespace strata::ops::cuda
