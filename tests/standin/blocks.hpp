#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include <vector_types.h>

// Kernels on a CPU. The threads of a block take turns on one thread of the system: each runs until
// it stops for the others of its warp or block, on a stack of its own from then on. Threads that
// never stop run one after the other, as a loop would.

// As kernels call them. They are those of the thread whose turn it is.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

namespace standin {

inline constexpr unsigned kWarpThreads = 32;
inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;
inline constexpr unsigned kMostThreads = 1024;
/// Shared memory whose size is given at launch: without asking, and at most (compute capability
/// 9.0).
inline constexpr std::size_t kSharedBytesUnasked = 48U << 10U;
inline constexpr std::size_t kMostSharedBytes = 227U << 10U;

/// Where a thread waits for others.
enum class Stop { kNone, kEnd, kBarrier, kBarrierOr, kWarpBarrier, kShuffle, kBallot, kMatrix };

/// A word of each lane.
using WarpValues = std::array<std::uint64_t, kWarpThreads>;

/// Ends the program with a line about the kernel that runs.
[[noreturn]] void fail_kernel(const char* what);

inline void require_whole_warp(unsigned mask) {
  if (mask != kWholeWarp || blockDim.x % kWarpThreads != 0) {
    fail_kernel("a warp's operation is not one of 32 threads");
  }
}

/// For kernels. What only some of a warp's or a block's threads reach ends the program with a
/// message.
void stop_at(Stop stop);
/// Whether any thread of the block says so.
[[nodiscard]] bool any_in_block(bool predicate);
/// What the lanes of this warp gave. Void after the second next stop.
[[nodiscard]] const WarpValues& exchange(Stop stop, std::uint64_t value);
/// Gives a word before this warp stops; what all its lanes gave, for the last of them, else null.
[[nodiscard]] const WarpValues* offer(Stop stop, std::uint64_t value);

/// A copy to shared memory that this thread begins: it is made in finish_copies(). Zeros where
/// there is no source. A thread that ends without that ends the program with a message, as an
/// address that is no multiple of `bytes` does.
void copy_later(void* target, const void* source, std::size_t bytes);
void finish_copies();

struct Launch {
  unsigned blocks = 0;
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
  const char* kernel = "";       ///< for messages
  std::function<void()> thread;  ///< what one thread does
};

/// Runs all blocks, in order. The memory of __shared__ variables, which is this thread's
/// thread_local memory of the executable, holds 0xFF bytes before each.
void run_blocks(const Launch& launch);

/// What runs at the moment; null outside of kernels.
[[nodiscard]] const char* running_kernel();

}  // namespace standin
