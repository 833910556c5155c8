#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/chunks.hpp"
#include "cuda/kernel.hpp"

// Elementwise kernels. A thread loads a chunk of each operand, 16 bytes of the widest type,
// computes its elements one by one and stores the outputs. Tail elements and unaligned operands
// take one element for each thread, with the same bits.
namespace strata::ops::cuda {

template <typename T>
struct In {
  using Element = T;
  static constexpr bool kReads = true;
  const T* at;
};

template <typename T>
struct Out {
  using Element = T;
  static constexpr bool kReads = false;
  T* at;
};

template <typename T>
struct InOut : Out<T> {
  static constexpr bool kReads = true;
};

/// A thread's elements [first, first + kWidth) of an operand.
template <typename Operand, int kWidth>
struct Part {
  using Elements = Chunk<typename Operand::Element, kWidth>;

  __device__ Part(const Operand& whole, std::int64_t begin) : operand(whole), first(begin) {
    if constexpr (Operand::kReads) {
      elements = *reinterpret_cast<const Elements*>(operand.at + first);
    }
  }
  __device__ void store() const {
    if constexpr (!std::is_const_v<std::remove_pointer_t<decltype(Operand::at)>>) {
      *reinterpret_cast<Elements*>(operand.at + first) = elements;
    }
  }

  Operand operand;
  std::int64_t first;
  Elements elements;
};

template <int kWidth, typename Function, typename... Parts>
__device__ void map_parts(const Function& function, Parts... parts) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    function(parts.elements.at[i]...);
  }
  (parts.store(), ...);
}

template <int kWidth, typename Function, typename... Operands>
__global__ void map_kernel(std::int64_t count, Function function, Operands... operands) {
  const std::int64_t first = thread_number() * kWidth;
  if (first + kWidth <= count) {
    map_parts<kWidth>(function, Part<Operands, kWidth>(operands, first)...);
  } else {
    for (std::int64_t i = first; i < count; ++i) {
      map_parts<1>(function, Part<Operands, 1>(operands, i)...);
    }
  }
}

/// function(element of each operand...) for all of `count` elements; an Out element is
/// uninitialised. An Out or InOut operand may be the memory of an In operand of the same type.
template <typename Function, typename... Operands>
void map(Context& context, const char* name, std::int64_t count, const Function& function,
         const Operands&... operands) {
  constexpr int kWidth =
      kChunkBytes / static_cast<int>(std::max({sizeof(typename Operands::Element)...}));
  const auto is_aligned = [](const auto& operand) {
    return reinterpret_cast<std::uintptr_t>(operand.at) % (sizeof(*operand.at) * kWidth) == 0;
  };
  if ((is_aligned(operands) && ...)) {
    launch(context, name, grid_of((count + kWidth - 1) / kWidth),
           map_kernel<kWidth, Function, Operands...>, count, function, operands...);
  } else {
    launch(context, name, grid_of(count), map_kernel<1, Function, Operands...>, count, function,
           operands...);
  }
}

}  // namespace strata::ops::cuda
