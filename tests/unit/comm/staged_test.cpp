#include "strata/comm/staged.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "strata/comm/partitioned_group.hpp"
#include "strata/core/clock.hpp"
#include "strata/device/buffer.hpp"

#include "slow_group.hpp"

namespace strata::comm::test::staged_test {
namespace {

TEST(CudaStaged, WaitsForTheGpuAreComputingAndThoseForMessagesAreNot) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  const device::Device device = device::Device::cuda(0);
  device::Stream stream(device);
  auto host = std::make_unique<SlowGroup>(0.0);
  const SlowGroup& slow = *host;
  ProgressEngine host_engine;
  const DeviceWorld world = staged(std::move(host), host_engine, stream);
  PartitionedGroup parts(*world.ranks, *world.engine, 2);
  constexpr std::int64_t kBytes = std::int64_t{16} << 20;
  const device::Buffer from(device, kBytes);
  const device::Buffer to(device, kBytes);
  // Makes the pinned memory, too.
  parts.all_gather_parts(from.view(0, {8}, DType::kUint8), to.view(0, {16}, DType::kUint8));
  stream.synchronize();
  parts.reset_clock();
  const double computed = world.engine->computing_seconds();
  const double sent = slow.message_seconds();

  for (int i = 0; i < 20; ++i) {
    device::copy_tensor(from.view(0, {kBytes}, DType::kUint8), to.view(0, {kBytes}, DType::kUint8),
                        stream);
  }
  const double begin = now_seconds();
  parts.all_gather_parts(from.view(0, {8}, DType::kUint8), to.view(0, {16}, DType::kUint8));
  const double seconds = now_seconds() - begin;
  const double computing = world.engine->computing_seconds() - computed;
  const double message = slow.message_seconds() - sent;
  EXPECT_GT(computing, 0.0);
  EXPECT_LE(computing, seconds - message);
  EXPECT_GE(parts.exposed_seconds(), message);
  EXPECT_LE(parts.exposed_seconds(), seconds - computing);
}

}  // namespace
}  // namespace strata::comm::test::staged_test
