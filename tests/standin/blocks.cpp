#include "blocks.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "shared_memory.hpp"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace standin {
namespace {

constexpr std::size_t kGuardBytes = 4096;
constexpr std::size_t kStackBytes = 16 * kGuardBytes;
constexpr std::size_t kStepBytes = 9 * 64;

/// Goes on where `to` ends, which is the end of a stack that was left here before, or the place of
/// an entry's address; leaves the end of this stack at `from`. It is part of its caller and jumps
/// to one place for all threads that stop alike, which is what a processor guesses right. Below the
/// stack's end may lie 128 bytes of the caller's.
[[gnu::always_inline]] inline void switch_stacks(void** from, void* to) {
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"
      "pushq %%rbp\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "movq %%rsp, (%0)\n\t"
      "movq %1, %%rsp\n\t"
      "popq %%rax\n\t"
      "jmpq *%%rax\n"
      "1:\n\t"
      "popq %%rbp\n\t"
      "leaq 128(%%rsp), %%rsp\n\t"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0",
        "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
        "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}

/// A stack with a page below it that must not be touched, and where it was left.
class Fiber {
 public:
  /// `number` among all fibers. Their stacks begin at different places of their pages, else the
  /// caches had few places for them all.
  Fiber(void (*entry)(), std::size_t number) {
    void* const memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
      fail_kernel("there is no memory for a thread's stack");
    }
    // The entry, and the place of a return address, which keeps the alignment.
    const std::size_t unused = number * kStepBytes % (kStackBytes / 4);
    auto* const top = reinterpret_cast<void**>(static_cast<std::byte*>(memory) + kGuardBytes +
                                               kStackBytes - unused);
    top[-2] = reinterpret_cast<void*>(entry);
    end_ = top - 2;
  }

  [[gnu::always_inline]] void resume(void*& from) { switch_stacks(&from, end_); }
  [[gnu::always_inline]] void leave(void* to) { switch_stacks(&end_, to); }
  [[gnu::always_inline]] void leave(const Fiber& to) { switch_stacks(&end_, to.end_); }

 private:
  void* end_;
};

bool is_of_warp(Stop stop) {
  return stop == Stop::kWarpBarrier || stop == Stop::kShuffle || stop == Stop::kBallot ||
         stop == Stop::kMatrix;
}

struct Copy {
  void* target;
  const void* source;
  std::size_t bytes;
};

struct Warp {
  unsigned begin = 0;
  unsigned end = 0;
  Stop stop = Stop::kNone;  ///< of all its threads
  WarpValues values[2];  ///< those of this exchange, and of the last one, which may still be read
  unsigned exchanges = 0;
};

/// The block whose threads run.
class Block {
 public:
  void run(const Launch& launch);

  [[gnu::always_inline]] void stop_at(Stop stop) {
    note(stop);
    Fiber* const own = running_;
    Fiber* const next = next_after(stop);
    if (next == nullptr) {
      own->leave(scheduler_);
    } else {
      running_ = next;
      own->leave(*next);
    }
  }
  [[nodiscard]] bool any(bool predicate) {
    pending_any_ = pending_any_ || predicate;
    stop_at(Stop::kBarrierOr);
    return any_;
  }
  [[nodiscard]] const WarpValues& exchange(Stop stop, std::uint64_t value) {
    Warp& warp = warps_[threadIdx.x / kWarpThreads];
    WarpValues& values = warp.values[warp.exchanges % 2];
    values[threadIdx.x % kWarpThreads] = value;
    stop_at(stop);
    return values;
  }
  [[nodiscard]] const WarpValues* offer(Stop stop, std::uint64_t value) {
    note(stop);
    Warp& warp = warps_[threadIdx.x / kWarpThreads];
    WarpValues& values = warp.values[warp.exchanges % 2];
    values[threadIdx.x % kWarpThreads] = value;
    return threadIdx.x + 1 == warp.end ? &values : nullptr;
  }
  /// What the running thread copies later.
  [[nodiscard]] std::vector<Copy>& copies() { return copies_[threadIdx.x]; }
  [[nodiscard]] const Launch* launch() const { return launch_; }

 private:
  /// The threads of a warp stop at the same things.
  void note(Stop stop) {
    Warp& warp = warps_[threadIdx.x / kWarpThreads];
    if (threadIdx.x == warp.begin) {
      warp.stop = stop;
    } else if (warp.stop != stop) {
      fail_kernel("threads of one warp stop at different things");
    }
  }
  /// The thread whose turn it is after this one, as threadIdx says from then on; null where that is
  /// for the scheduler to say. The warp's last thread lets the others go on.
  [[nodiscard]] Fiber* next_after(Stop stop) {
    const unsigned thread = threadIdx.x;
    Warp& warp = warps_[thread / kWarpThreads];
    if (thread + 1 == warp.end && is_of_warp(stop)) {
      ++warp.exchanges;
      threadIdx.x = warp.begin;
    } else if (thread + 1 < warp.end && thread + 1 < started_) {
      threadIdx.x = thread + 1;
    } else {
      return nullptr;
    }
    return of_thread_[threadIdx.x];
  }
  static void run_threads();
  void run_to_barrier(const Warp& warp);

  const Launch* launch_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;       ///< not in a thread
  std::vector<Fiber*> of_thread_;  ///< null before and after a thread runs
  std::vector<Warp> warps_;
  std::vector<std::vector<Copy>> copies_;  ///< of each thread
  unsigned started_ = 0;                   ///< threads
  unsigned warp_end_ = 0;                  ///< of the warp whose turn it is
  Fiber* running_ = nullptr;
  void* scheduler_ = nullptr;
  bool any_ = false;
  bool pending_any_ = false;
};

constinit Block the_block;

/// A fiber's life: it takes threads of a warp that have not started, one after the other, and lies
/// idle when there are none.
void Block::run_threads() {
  Block& self = the_block;
  while (true) {
    Fiber* const own = self.running_;
    while (self.started_ < self.warp_end_) {
      threadIdx.x = self.started_++;
      self.of_thread_[threadIdx.x] = own;
      self.launch_->thread();
      if (!self.copies().empty()) {
        fail_kernel("a thread ends before its copies to shared memory have arrived");
      }
      self.of_thread_[threadIdx.x] = nullptr;
      self.note(Stop::kEnd);
    }
    self.free_.push_back(own);
    own->leave(self.scheduler_);
  }
}

void Block::run_to_barrier(const Warp& warp) {
  warp_end_ = warp.end;
  for (unsigned thread = warp.begin; thread < warp.end; ++thread) {
    if (thread < started_) {
      running_ = of_thread_[thread];
      if (running_ == nullptr) {
        continue;  // it ended before its turn came here
      }
    } else {
      if (free_.empty()) {
        fibers_.push_back(std::make_unique<Fiber>(&Block::run_threads, fibers_.size()));
        free_.push_back(fibers_.back().get());
      }
      running_ = free_.back();
      free_.pop_back();
    }
    threadIdx.x = thread;
    running_->resume(scheduler_);
    thread = threadIdx.x;  // others had their turns since
  }
}

void Block::run(const Launch& launch) {
  launch_ = &launch;
  started_ = 0;
  pending_any_ = false;
  of_thread_.assign(launch.threads, nullptr);
  copies_.resize(launch.threads);
  warps_.resize((launch.threads + kWarpThreads - 1) / kWarpThreads);
  for (std::size_t i = 0; i < warps_.size(); ++i) {
    warps_[i].begin = static_cast<unsigned>(i) * kWarpThreads;
    warps_[i].end = std::min(warps_[i].begin + kWarpThreads, launch.threads);
  }
  do {
    for (const Warp& warp : warps_) {
      run_to_barrier(warp);
      if (warp.stop != warps_.front().stop) {
        fail_kernel("warps of one block stop at different things");
      }
    }
    any_ = std::exchange(pending_any_, false);
  } while (warps_.front().stop != Stop::kEnd);
  launch_ = nullptr;
}

}  // namespace

void stop_at(Stop stop) {
  the_block.stop_at(stop);
}

bool any_in_block(bool predicate) {
  return the_block.any(predicate);
}

const WarpValues& exchange(Stop stop, std::uint64_t value) {
  return the_block.exchange(stop, value);
}

const WarpValues* offer(Stop stop, std::uint64_t value) {
  return the_block.offer(stop, value);
}

void copy_later(void* target, const void* source, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(target) % bytes != 0 ||
      reinterpret_cast<std::uintptr_t>(source) % bytes != 0) {
    fail_kernel("a copy to shared memory is not between multiples of its size");
  }
  the_block.copies().push_back({target, source, bytes});
}

void finish_copies() {
  for (const Copy& copy : the_block.copies()) {
    if (copy.source == nullptr) {
      std::memset(copy.target, 0, copy.bytes);
    } else {
      std::memcpy(copy.target, copy.source, copy.bytes);
    }
  }
  the_block.copies().clear();
}

void run_blocks(const Launch& launch) {
  gridDim = dim3(launch.blocks);
  blockDim = dim3(launch.threads);
  SharedMemory shared(launch.shared_bytes);
  for (unsigned index = 0; index < launch.blocks; ++index) {
    blockIdx.x = index;
    shared.spoil();
    the_block.run(launch);
  }
  if (!shared.kept_its_size()) {
    fail_kernel("shared memory was written beyond what the launch asked for");
  }
}

const char* running_kernel() {
  const Launch* const launch = the_block.launch();
  return launch == nullptr ? nullptr : launch->kernel;
}

void fail_kernel(const char* what) {
  const char* const kernel = running_kernel();
  std::fprintf(stderr, "stand-in for a GPU: %s: block %u, thread %u of %s\n", what, blockIdx.x,
               threadIdx.x, kernel == nullptr ? "no kernel" : kernel);
  std::abort();
}

}  // namespace standin
