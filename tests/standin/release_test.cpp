#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <thread>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "strata/device/buffer.hpp"
#include "strata/device/device.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/device/pinned_buffer.hpp"
#include "strata/device/stream.hpp"

// Work of the stand-in is under way until somebody waits for it.
namespace strata::device {
namespace {

TEST(Release, OfMemoryGivesItUpWhereItsWorkDoesNotEndInTime) {
  constexpr std::int64_t kBytes = 1 << 16;
  const Device gpu = Device::cuda(0);
  const Buffer from(gpu, kBytes);
  Stream stream(gpu);
  const std::int64_t free_bytes = free_memory_bytes(0);
  const auto release_behind_work = [&] {
    std::optional<Buffer> used(std::in_place, gpu, kBytes);
    for (int i = 0; i < 3; ++i) {
      copy_tensor(from.view(0, {kBytes}, DType::kUint8), used->view(0, {kBytes}, DType::kUint8),
                  stream);
    }
    used.reset();
    return stream.idle();
  };
  EXPECT_TRUE(release_behind_work());
  EXPECT_EQ(free_memory_bytes(0), free_bytes);
  limit_release_waits(0.0);
  EXPECT_FALSE(release_behind_work());
  EXPECT_EQ(free_memory_bytes(0), free_bytes - kBytes);
  limit_release_waits(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(release_behind_work());
  EXPECT_EQ(free_memory_bytes(0), free_bytes - kBytes);
}

TEST(Copies, AreOfTheGpuOfTheirMemoryOnEveryThread) {
  constexpr std::int64_t kBytes = 64;
  const Device second = Device::cuda(1);
  const Buffer memory(second, kBytes);
  const TensorView on_gpu = memory.view(0, {kBytes}, DType::kUint8);
  std::array<std::uint8_t, kBytes> numbers{};
  const TensorView on_host(std::span<std::uint8_t>(numbers), Shape{kBytes});
  Stream stream(second);
  // A thread begins on the first GPU, where a call would make a context.
  const auto gpu_of = [](const std::function<void()>& work) {
    int gpu = -1;
    std::thread([&] {
      work();
      EXPECT_EQ(cudaGetDevice(&gpu), cudaSuccess);
    }).join();
    return gpu;
  };
  EXPECT_EQ(gpu_of([] {}), 0);
  EXPECT_EQ(gpu_of([&] { copy_tensor(on_host, on_gpu); }), 1);
  EXPECT_EQ(gpu_of([&] { copy_tensor(on_gpu, on_host); }), 1);
  EXPECT_EQ(gpu_of([&] { copy_tensor(on_host, on_gpu, stream); }), 1);
  EXPECT_EQ(gpu_of([&] { const PinnedBuffer pinned(second, kBytes); }), 1);
  stream.synchronize();
}

}  // namespace
}  // namespace strata::device
