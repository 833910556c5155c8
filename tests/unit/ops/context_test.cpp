#include "strata/ops/context.hpp"

#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "strata/ops/matmul.hpp"
#include "strata/ops/parallel_for.hpp"

#include "tensors.hpp"

namespace strata::ops::context_test {
namespace {

using namespace test;

TEST(ParallelFor, ChunksDoNotDependOnThreads) {
  using Chunks = std::set<std::pair<std::int64_t, std::int64_t>>;
  const Chunks expected{{0, 30}, {30, 60}, {60, 90}, {90, 100}};
  for (const int threads : {1, 2, 7}) {
    Context context(threads);
    Chunks seen;
    std::mutex mutex;
    parallel_for(context, 100, 30, [&](std::int64_t begin, std::int64_t end) {
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(seen.emplace(begin, end).second);
    });
    EXPECT_EQ(seen, expected);
  }
}

TEST(ParallelFor, DoesNothingForNothing) {
  Context context(2);
  parallel_for(context, 0, 8, [](std::int64_t, std::int64_t) { ADD_FAILURE(); });
}

TEST(Context, NeedsAThread) {
  EXPECT_THROW(Context(0), std::logic_error);
}

TEST(Context, OfTheCpuHasNothingOfAGpu) {
  Context context(1);
  EXPECT_EQ(context.device(), device::Device::cpu());
  EXPECT_THROW(static_cast<void>(context.cuda_resources()), std::logic_error);
  EXPECT_THROW(static_cast<void>(Context::cuda(device::Device::cpu())), std::logic_error);
  EXPECT_NO_THROW(context.synchronize());
}

TEST(Context, ManyInOneProcessDoNotDisturbOneAnother) {
  const auto product = [](int threads) {
    Context context(threads);
    std::vector<float> last;
    for (int repeat = 0; repeat < 5; ++repeat) {
      for (const std::int64_t m : {3, 600}) {
        const auto a = randoms<float>({m, 90}, 1);
        const auto b = randoms<float>({700, 90}, 2);
        Tensor<float> c({m, 700});
        matmul(context, a.view(), b.view(), c.view(), {.transpose_b = Transpose::kYes});
        last = c.values();
      }
    }
    return last;
  };
  const std::vector<float> expected = product(1);
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    threads.emplace_back([&, rank] { results[rank] = product(static_cast<int>(rank) + 1); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& result : results) {
    EXPECT_TRUE(expected == result);
  }
}

TEST(Context, MovesWithItsPrimitives) {
  Context first(2);
  const auto a = randoms<float>({8, 9}, 1);
  const auto b = randoms<float>({9, 7}, 2);
  Tensor<float> c({8, 7});
  Tensor<float> again({8, 7});
  matmul(first, a.view(), b.view(), c.view());
  Context second(std::move(first));
  matmul(second, a.view(), b.view(), again.view());
  EXPECT_TRUE(c.values() == again.values());
}

}  // namespace
}  // namespace strata::ops::context_test
