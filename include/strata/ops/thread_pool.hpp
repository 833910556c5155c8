#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace strata::ops {

/// The threads of one Context, which may share their cores with other processes. A thread without
/// work spins briefly and then sleeps. The caller never waits for a thread that has not started:
/// the threads that run take over its chunks.
class ThreadPool {
 public:
  /// Runs one chunk on thread `thread` of the pool; the caller of run() is thread 0.
  using Body = void (*)(const void* function, std::int64_t chunk, int thread);

  /// Pre: threads >= 1. The first run() starts the threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return threads_; }
  /// Runs body(function, chunk, thread) once for each chunk of [0, chunks) and returns when all are
  /// complete. Pre: body does not throw and does not call run(); one call at a time.
  void run(std::int64_t chunks, Body body, const void* function);

 private:
  /// One thread's consecutive chunks; threads that have finished their own take from others.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  void start();
  void work(int thread);
  void run_chunks(int thread);

  int threads_;
  Body body_ = nullptr;
  const void* function_ = nullptr;
  std::unique_ptr<Share[]> shares_;
  /// Number of the job, whether threads may join it, and how many have joined and not yet left.
  std::atomic<std::uint32_t> state_{0};
  /// Number of the last job that its last thread has left after its end.
  std::atomic<std::uint32_t> left_{0};
  std::vector<std::thread> workers_;
};

}  // namespace strata::ops
