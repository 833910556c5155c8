#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "strata/core/reduction_step.hpp"

namespace strata::ops {

class Context;

}  // namespace strata::ops

// What kernels are launched with. It stands apart from Context and CudaResources, for nvcc reads
// every header of a .cu file once a pass. Defined in context.cpp.
namespace strata::ops::cuda {

/// A GPU's index and the cudaStream_t that its kernels are put on.
struct Queue {
  int device = 0;
  void* stream = nullptr;
};
[[nodiscard]] Queue queue_of(Context& context);

/// CudaResources's of the same names.
[[nodiscard]] std::byte* scratch_bytes_of(Context& context, std::int64_t bytes);
[[nodiscard]] const ReductionStep* additions_of(Context& context,
                                                std::span<const ReductionStep> steps);

/// Throw std::logic_error where a launch has no block or more than a grid takes, and where rows are
/// longer than `longest`.
void require_blocks(const char* name, std::int64_t blocks);
void require_rows(const char* name, std::int64_t columns, std::int64_t longest);

/// Throws Error(kUsage): attention's heads have more than `largest` elements.
[[noreturn]] void refuse_head(std::int64_t largest, std::int64_t elements);

}  // namespace strata::ops::cuda
