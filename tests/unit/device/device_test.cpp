#include "strata/device/device.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/gpu_info.hpp"
#include "strata/device/stopwatch.hpp"
#include "strata/device/stream.hpp"

#include "gpu_test.hpp"

namespace strata::device::device_test {
namespace {

TEST(Device, HasAKindAMemorySpaceAndAName) {
  EXPECT_EQ(Device::cpu().kind(), DeviceKind::kCpu);
  EXPECT_EQ(Device::cpu().memory_space(), MemorySpace::kHost);
  EXPECT_EQ(Device::cpu().text(), "cpu");
  EXPECT_EQ(enum_from_name<DeviceKind>("cuda"), DeviceKind::kCuda);
}

TEST(Device, AGpuThatIsNotThereIsAnErrorThatSaysSo) {
  const std::int64_t beyond = cuda_device_count();
  for (const std::int64_t index : {beyond, std::int64_t{-1}}) {
    try {
      static_cast<void>(Device::cuda(index));
      FAIL() << "GPU " << index << " was found";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kPeer);
      EXPECT_THAT(error.what(), testing::HasSubstr("GPU " + std::to_string(index)));
    }
  }
}

TEST(Buffer, IsAlignedAndZero) {
  // The last is large enough for huge pages, and ends within one.
  for (const std::int64_t bytes : {1, 63, 4096, 100001, 5000001}) {
    const Buffer buffer(Device::cpu(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.raw()) % 64, 0U);
    const auto elements = buffer.view(0, {bytes}, DType::kUint8).host<std::uint8_t>();
    EXPECT_TRUE(std::ranges::all_of(elements, [](std::uint8_t byte) { return byte == 0; }));
  }
}

TEST(Buffer, ViewsLieWithinIt) {
  const Buffer buffer(Device::cpu(), 100);
  const TensorView view = buffer.view(16, {3, 7}, DType::kFloat32);
  EXPECT_EQ(view.raw(), buffer.raw() + 16);
  EXPECT_EQ(view.memory_space(), MemorySpace::kHost);
  EXPECT_THROW(static_cast<void>(buffer.view(20, {3, 7}, DType::kFloat32)), std::logic_error);
  EXPECT_THROW(static_cast<void>(buffer.view(-4, {1}, DType::kFloat32)), std::logic_error);
  EXPECT_THROW(static_cast<void>(buffer.view(4, {1}, DType::kFloat64)), std::logic_error);
}

TEST(Buffer, MovesLeaveNothingBehind) {
  Buffer first(Device::cpu(), 64);
  std::byte* const memory = first.raw();
  Buffer second(std::move(first));
  EXPECT_EQ(second.raw(), memory);
  Buffer third;
  EXPECT_TRUE(third.empty());
  third = std::move(second);
  EXPECT_EQ(third.raw(), memory);
  EXPECT_EQ(third.bytes(), 64);
}

TEST(Buffer, TooMuchIsAnErrorThatSaysHowMuch) {
  // Sanitizers end the program at such a request instead of refusing it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  try {
    const Buffer buffer(Device::cpu(), std::int64_t{1} << 60);
    FAIL() << "2^60 bytes were found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kPeer);
    EXPECT_THAT(error.what(), testing::HasSubstr("1048576.00 TiB on cpu"));
  }
#else
  GTEST_SKIP() << "not with a sanitizer";
#endif
}

TEST(Buffer, CopiesBetweenTensors) {
  const Buffer from(Device::cpu(), 40);
  const Buffer to(Device::cpu(), 48);
  const auto source = from.view(0, {10}, DType::kFloat32);
  source.host<float>()[7] = 2.5F;
  copy_tensor(source, to.view(8, {2, 5}, DType::kFloat32));
  EXPECT_EQ(to.view(8, {10}, DType::kFloat32).host<float>()[7], 2.5F);
  Stream stream(Device::cpu());
  source.host<float>()[7] = 3.5F;
  copy_tensor(source, to.view(8, {2, 5}, DType::kFloat32), stream);
  EXPECT_EQ(to.view(8, {10}, DType::kFloat32).host<float>()[7], 3.5F);
  EXPECT_THROW(copy_tensor(source, to.view(0, {9}, DType::kFloat32)), std::logic_error);
}

TEST(Event, CountsItsConsumers) {
  Stream stream(Device::cpu());
  Event event(Device::cpu(), 2);
  EXPECT_THROW(event.wait(stream), std::logic_error);
  event.record(stream);
  EXPECT_EQ(event.waits_due(), 2);
  event.wait(stream);
  EXPECT_THROW(event.record(stream), std::logic_error);
  event.wait_on_host();
  EXPECT_EQ(event.waits_due(), 0);
  EXPECT_THROW(event.wait(stream), std::logic_error);
  event.record(stream);
  EXPECT_EQ(event.waits_due(), 2);
}

TEST(BuildInfo, NamesTheLibrariesThatAreLinked) {
  const auto libraries = cuda_libraries();
#ifdef STRATA_HAVE_CUDA
  ASSERT_GE(libraries.size(), 2U);
  EXPECT_EQ(libraries[0].name, "CUDA");
  EXPECT_EQ(libraries[1].name, "cuBLAS");
  for (const LibraryVersion& library : libraries) {
    EXPECT_GT(std::stod(library.version), 1.0) << library.name << " " << library.version;
  }
#else
  EXPECT_TRUE(libraries.empty());
#endif
}

TEST_F(Cuda, DeviceMemoryRoundTrip) {
  const Device device = Device::cuda(0);
  const Buffer host(Device::cpu(), 4096);
  const Buffer back(Device::cpu(), 4096);
  const Buffer memory(device, 4096);
  const auto zero = back.view(0, {4096}, DType::kUint8);
  std::memset(zero.raw(), 1, 4096);
  copy_tensor(memory.view(0, {4096}, DType::kUint8), zero);
  EXPECT_EQ(zero.host<std::uint8_t>()[4095], 0);
  std::memset(host.raw(), 7, 4096);
  Stream first(device);
  Stream second(device);
  Event event(device, 1);
  copy_tensor(host.view(0, {4096}, DType::kUint8), memory.view(0, {4096}, DType::kUint8), first);
  event.record(first);
  event.wait(second);
  copy_tensor(memory.view(0, {4096}, DType::kUint8), zero, second);
  second.synchronize();
  EXPECT_EQ(zero.host<std::uint8_t>()[4095], 7);
}

TEST(Event, OfTheCpuIsReachedWhenItIsRecorded) {
  Stream stream(Device::cpu());
  Event event(Device::cpu(), 1);
  event.record(stream);
  EXPECT_TRUE(event.reached());
  EXPECT_TRUE(stream.idle());
}

/// Copies on a GPU, which keep a stream busy.
class GpuCopies {
 public:
  GpuCopies(const Device& device, std::int64_t bytes)
      : shape_{bytes}, from_(device, bytes), to_(device, bytes) {}

  void enqueue(Stream& stream, int times) const {
    for (int i = 0; i < times; ++i) {
      copy_tensor(from_.view(0, shape_, DType::kUint8), to_.view(0, shape_, DType::kUint8), stream);
    }
  }

 private:
  Shape shape_;
  Buffer from_;
  Buffer to_;
};

TEST_F(Cuda, QueriesDoNotBlock) {
  const Device device = Device::cuda(0);
  const GpuCopies copies(device, std::int64_t{64} << 20);
  Stream stream(device);
  Event event(device, 1);
  // Long enough for the host to ask before they are done.
  copies.enqueue(stream, 100);
  event.record(stream);
  EXPECT_FALSE(event.reached());
  EXPECT_FALSE(stream.idle());
  stream.synchronize();
  EXPECT_TRUE(event.reached());
  EXPECT_TRUE(stream.idle());
}

TEST_F(Cuda, AStopwatchCountsTheStreamsTime) {
  const Device device = Device::cuda(0);
  const GpuCopies copies(device, std::int64_t{1} << 20);
  Stream stream(device);
  Stopwatch outer(device);
  Stopwatch inner(device);
  EXPECT_THROW((void)inner.seconds(), Error);
  outer.start(stream);
  copies.enqueue(stream, 1);
  inner.start(stream);
  copies.enqueue(stream, 1);
  inner.stop(stream);
  outer.stop(stream);
  stream.synchronize();
  EXPECT_GT(inner.seconds(), 0.0);
  EXPECT_GT(outer.seconds(), inner.seconds());
  EXPECT_THROW(Stopwatch(Device::cpu()), std::logic_error);
}

TEST_F(Cuda, AStopwatchCountsWaitsForAnotherStream) {
  const Device device = Device::cuda(0);
  const GpuCopies copies(device, std::int64_t{16} << 20);
  Stream computing(device);
  Stream other(device);
  Event done(device, 1);
  Stopwatch wait(device);
  Stopwatch nothing(device);
  // Long enough for the wait to be on its stream before they are done.
  copies.enqueue(other, 100);
  done.record(other);
  wait.start(computing);
  done.wait(computing);
  wait.stop(computing);
  nothing.start(computing);
  nothing.stop(computing);
  computing.synchronize();
  EXPECT_GT(wait.seconds(), 0.0);
  EXPECT_GT(wait.seconds(), nothing.seconds());
}

TEST_F(Cuda, TooMuchDeviceMemoryIsAnError) {
  EXPECT_THROW(Buffer(Device::cuda(0), std::int64_t{1} << 50), Error);
  EXPECT_NO_THROW(Buffer(Device::cuda(0), 1024));
}

std::vector<std::int64_t> chosen(std::int64_t ranks, std::int64_t gpus) {
  std::vector<std::int64_t> indices;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    indices.push_back(choose_gpu(rank, ranks, gpus).index);
  }
  return indices;
}

TEST(ChooseGpu, GivesEachRankItsOwnWhereThereAreEnough) {
  using Indices = std::vector<std::int64_t>;
  EXPECT_EQ(chosen(4, 4), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(chosen(2, 8), (Indices{0, 1}));
  EXPECT_EQ(choose_gpu(3, 4, 4).ranks, 1);
}

TEST(ChooseGpu, HasConsecutiveRanksShareWhereThereAreFewer) {
  using Indices = std::vector<std::int64_t>;
  EXPECT_EQ(chosen(4, 2), (Indices{0, 0, 1, 1}));
  EXPECT_EQ(chosen(5, 2), (Indices{0, 0, 0, 1, 1}));
  EXPECT_EQ(chosen(3, 1), (Indices{0, 0, 0}));
  EXPECT_EQ(choose_gpu(2, 5, 2).ranks, 3);
  EXPECT_EQ(choose_gpu(3, 5, 2).ranks, 2);
  EXPECT_THROW(static_cast<void>(choose_gpu(2, 2, 1)), std::logic_error);
  EXPECT_THROW(static_cast<void>(choose_gpu(0, 1, 0)), std::logic_error);
}

TEST(GpuInfo, VersionsHaveMajorAndMinorNumbers) {
  EXPECT_EQ(cuda_version_text(13000), "13.0");
  EXPECT_EQ(cuda_version_text(12040), "12.4");
  EXPECT_EQ(cuda_version_text(0), "none");
}

TEST(GpuInfo, PublishedPeaksAreFoundByName) {
  const auto bfloat16_of = [](const char* name) {
    const std::optional<PeakFlops> peak = published_peak({.name = name});
    return peak ? peak->bfloat16 : 0.0;
  };
  EXPECT_EQ(bfloat16_of("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(bfloat16_of("NVIDIA H100 80GB HBM3"), 989.5e12);
  EXPECT_EQ(bfloat16_of("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(bfloat16_of("NVIDIA H200"), 989.5e12);
  EXPECT_EQ(bfloat16_of("NVIDIA GH200 120GB"), 989.5e12);
  EXPECT_EQ(bfloat16_of("NVIDIA B200"), 2250e12);
  EXPECT_EQ(bfloat16_of("NVIDIA GB200"), 2500e12);
  EXPECT_EQ(bfloat16_of("NVIDIA H200 NVL"), 0.0);
  EXPECT_EQ(bfloat16_of("NVIDIA L40S"), 0.0);
}

TEST(GpuInfo, IsEmptyWithoutAGpu) {
  EXPECT_EQ(static_cast<std::int64_t>(gpus().size()), cuda_device_count());
}

TEST_F(Cuda, AGpuHasANameAnIdAndMemory) {
  const GpuInfo info = gpus().front();
  EXPECT_NE(info.name, "");
  EXPECT_THAT(info.bus_id, testing::HasSubstr(":"));
  EXPECT_EQ(info.uuid.size(), 40U);
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_GT(free_memory_bytes(0), 0);
  EXPECT_LE(free_memory_bytes(0), info.memory_bytes);
  EXPECT_GE(cuda_versions().driver, cuda_versions().runtime / 1000 * 1000);
}

TEST(Gpus, TheDriverTellsItsVersion) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("driver-" + std::to_string(getpid()));
  const auto version_in = [&](const std::string& text) {
    std::ofstream(file) << text;
    return driver_version(file);
  };
  EXPECT_EQ(version_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n"),
            "535.104.05");
  EXPECT_EQ(version_in("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  "
                       "Release Build  (root@host)\nGCC version:  gcc version 12.2.0\n"),
            "580.159.03");
  EXPECT_EQ(version_in(""), "");
  std::filesystem::remove(file);
  EXPECT_EQ(driver_version(file), "");
}

}  // namespace
}  // namespace strata::device::device_test
