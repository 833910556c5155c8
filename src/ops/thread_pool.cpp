#include "strata/ops/thread_pool.hpp"

#include <algorithm>
#include <chrono>

#include "strata/core/blocked_signals.hpp"
#include "strata/core/error.hpp"

namespace strata::ops {
namespace {

// Layout of state_: joined threads in the low bits, then two flags, then the job's number.
constexpr std::uint32_t kOpen = 1U << 12U;
constexpr std::uint32_t kEnd = 1U << 13U;
constexpr std::uint32_t kJob = 1U << 14U;
constexpr std::uint32_t kJoined = kOpen - 1;
constexpr std::uint32_t kNumber = ~(kJob - 1);

/// How long a thread spins before it sleeps: as long as most pauses between two jobs of a step
/// (bench/busy_neighbour.py; bench/README.md has the times with other values).
constexpr std::chrono::microseconds kSpin{200};

/// Tells the core that this is a spin loop.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until `ready(value)`: spins, then sleeps. Returns the value.
template <typename Ready>
std::uint32_t wait_until(const std::atomic<std::uint32_t>& word, const Ready& ready) {
  constexpr int kPausesPerClockRead = 16;
  const auto start = std::chrono::steady_clock::now();
  std::uint32_t value = word.load(std::memory_order_acquire);
  while (!ready(value) && std::chrono::steady_clock::now() - start < kSpin) {
    for (int i = 0; i < kPausesPerClockRead && !ready(value); ++i) {
      pause();
      value = word.load(std::memory_order_acquire);
    }
  }
  while (!ready(value)) {
    word.wait(value, std::memory_order_acquire);
    value = word.load(std::memory_order_acquire);
  }
  return value;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads) {
  require(threads >= 1 && static_cast<std::uint32_t>(threads) <= kJoined, "a pool of {} threads",
          threads);
}

ThreadPool::~ThreadPool() {
  state_.fetch_or(kEnd, std::memory_order_release);
  state_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::start() {
  shares_ = std::make_unique<Share[]>(static_cast<std::size_t>(threads_));
  const BlockedSignals blocked;
  for (int thread = 1; thread < threads_; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

void ThreadPool::run(std::int64_t chunks, Body body, const void* function) {
  if (workers_.empty()) {
    start();
  }
  // No thread is in a job now, so these may change.
  body_ = body;
  function_ = function;
  for (int thread = 0; thread < threads_; ++thread) {
    Share& share = shares_[static_cast<std::size_t>(thread)];
    share.next.store(chunks * thread / threads_, std::memory_order_relaxed);
    share.end = chunks * (thread + 1) / threads_;
  }
  // Job numbers recur after a wrap.
  left_.store(kOpen, std::memory_order_relaxed);
  const std::uint32_t job = (state_.load(std::memory_order_relaxed) & kNumber) + kJob;
  state_.store(job | kOpen, std::memory_order_release);
  state_.notify_all();
  run_chunks(0);
  const std::uint32_t closing = state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  if ((closing & kJoined) > 0) {
    wait_until(left_, [&](std::uint32_t number) { return number == job; });
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t last = 0;
  while (true) {
    std::uint32_t state = wait_until(state_, [&](std::uint32_t value) {
      return (value & kEnd) != 0 || ((value & kOpen) != 0 && (value & kNumber) != last);
    });
    if ((state & kEnd) != 0) {
      return;
    }
    if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) {
      continue;
    }
    last = state & kNumber;
    run_chunks(thread);
    const std::uint32_t leaving = state_.fetch_sub(1, std::memory_order_acq_rel);
    if ((leaving & kOpen) == 0 && (leaving & kJoined) == 1) {
      left_.store(last, std::memory_order_release);
      left_.notify_one();
    }
  }
}

void ThreadPool::run_chunks(int thread) {
  for (int i = 0; i < threads_; ++i) {
    Share& share = shares_[static_cast<std::size_t>((thread + i) % threads_)];
    for (std::int64_t chunk = 0;
         (chunk = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
      body_(function_, chunk, thread);
    }
  }
}

}  // namespace strata::ops
