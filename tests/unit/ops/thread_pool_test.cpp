#include "strata/ops/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/clock.hpp"

namespace strata::ops::thread_pool_test {
namespace {

template <typename Function>
void run(ThreadPool& pool, std::int64_t chunks, const Function& function) {
  pool.run(
      chunks,
      [](const void* body, std::int64_t chunk, int thread) {
        (*static_cast<const Function*>(body))(chunk, thread);
      },
      &function);
}

TEST(ThreadPool, RunsEachChunkOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (std::int64_t job = 0; job < 2000; ++job) {
      const std::int64_t chunks = job % 37;
      std::vector<int> runs(static_cast<std::size_t>(chunks), 0);
      std::atomic<int> strangers = 0;
      run(pool, chunks, [&](std::int64_t chunk, int thread) {
        ++runs[static_cast<std::size_t>(chunk)];
        strangers += thread < 0 || thread >= threads ? 1 : 0;
      });
      ASSERT_EQ(std::count(runs.begin(), runs.end(), 1), chunks) << threads << " threads";
      ASSERT_EQ(strangers, 0);
    }
  }
}

TEST(ThreadPool, TakesTheChunksOfAThreadThatIsStopped) {
  constexpr std::int64_t kChunks = 100;
  ThreadPool pool(2);
  std::atomic<std::int64_t> complete = 0;
  std::atomic<bool> stopped = false;
  run(pool, kChunks, [&](std::int64_t, int thread) {
    const double begin = now_seconds();
    if (thread == 1) {
      stopped = true;
      // Until the caller has run all others.
      while (complete < kChunks - 1 && now_seconds() - begin < 20.0) {
        std::this_thread::yield();
      }
      EXPECT_EQ(complete, kChunks - 1);
    } else {
      while (!stopped && now_seconds() - begin < 20.0) {
        std::this_thread::yield();
      }
    }
    ++complete;
  });
  EXPECT_TRUE(stopped);
  EXPECT_EQ(complete, kChunks);
}

TEST(ThreadPool, SleepsWithoutWork) {
  ThreadPool pool(4);
  run(pool, 64, [](std::int64_t, int) {});
  const std::clock_t begin = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 0.02);
}

}  // namespace
}  // namespace strata::ops::thread_pool_test
