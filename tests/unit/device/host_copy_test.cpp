#include "strata/device/host_copy.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "strata/device/buffer.hpp"

#include "gpu_test.hpp"

namespace strata::device::host_copy_test {
namespace {

TEST(HostCopy, HostMemoryIsReadWhereItIs) {
  std::array<std::int64_t, 3> numbers{1, 2, 3};
  const HostCopy copy(TensorView(std::span<std::int64_t>(numbers), Shape{3}), Device::cpu());
  EXPECT_EQ(copy.view().host<std::int64_t>().data(), numbers.data());
}

TEST(HostCopy, OfNothingIsNothing) {
  Stream stream(Device::cpu());
  HostCopy none;
  none.update(stream);
  EXPECT_TRUE(none.view().empty());
  HostCopy empty(TensorView(nullptr, Shape{0}, DType::kFloat64, MemorySpace::kCuda), Device::cpu());
  empty.update(stream);
  EXPECT_TRUE(empty.view().host<double>().empty());
}

TEST_F(Cuda, AHostCopyIsTheTensorOfTheLastUpdate) {
  Stream stream(Device::cuda(0));
  const Buffer memory(stream.device(), 3 * 8);
  const TensorView tensor = memory.view(0, {3}, DType::kInt64);
  HostCopy copy(tensor, stream.device());
  std::array<std::int64_t, 3> numbers{1, 2, 3};
  const TensorView from(std::span<std::int64_t>(numbers), Shape{3});
  copy_tensor(from, tensor, stream);
  copy.update(stream);
  numbers[1] = 9;
  copy_tensor(from, tensor, stream);
  stream.synchronize();
  // Moved, it stays where the GPU wrote it.
  const HostCopy moved(std::move(copy));
  EXPECT_EQ(moved.view().host<std::int64_t>()[1], 2);
  EXPECT_EQ(moved.view().host<std::int64_t>()[2], 3);
}

}  // namespace
}  // namespace strata::device::host_copy_test
