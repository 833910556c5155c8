#include <cstdint>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include "strata/device/buffer.hpp"
#include "strata/device/device.hpp"
#include "strata/device/gpu_info.hpp"
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

}  // namespace
}  // namespace strata::device
