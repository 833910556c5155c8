#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

// What the stand-in for a GPU has to show, shown on kernels that are wrong on purpose.
namespace standin {
namespace {

using testing::Each;

constexpr std::size_t kCount = 64;
constexpr std::size_t kBytes = kCount * sizeof(float);

/// Two GPUs of 1 MiB, said before the first call.
const bool kTwoGpus = setenv("STRATA_STANDIN_GPUS", "2", 1) == 0 &&
                      setenv("STRATA_STANDIN_MEMORY", "1048576", 1) == 0;

/// Streams, device memory and pinned memory, all of kBytes, full of NaNs.
class StandIn : public testing::Test {
 protected:
  StandIn() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    for (cudaStream_t* stream : {&first_, &second_}) {
      EXPECT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    }
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
    device_ = static_cast<float*>(memory);
    EXPECT_EQ(cudaMallocHost(&memory, kBytes), cudaSuccess);
    pinned_ = static_cast<float*>(memory);
  }
  ~StandIn() override {
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    for (cudaStream_t stream : {first_, second_}) {
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
  }

  template <typename... Parameters, typename... Arguments>
  cudaError_t launch(unsigned blocks, unsigned threads, std::size_t shared_bytes,
                     void (*kernel)(Parameters...), const Arguments&... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = first_;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
  }
  /// Puts value -> device memory -> pinned memory on a stream.
  void send(float value, cudaStream_t stream) {
    const std::vector<float> values(kCount, value);
    EXPECT_EQ(cudaMemcpyAsync(device_, values.data(), kBytes, cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    fetch(stream);
  }
  void fetch(cudaStream_t stream) {
    EXPECT_EQ(cudaMemcpyAsync(pinned_, device_, kBytes, cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
  }
  /// Runs a kernel that writes kCount numbers.
  template <typename Kernel>
  std::vector<float> result_of(unsigned blocks, unsigned threads, Kernel kernel) {
    EXPECT_EQ(launch(blocks, threads, 0, kernel, device_), cudaSuccess);
    std::vector<float> result(kCount);
    EXPECT_EQ(cudaMemcpyAsync(result.data(), device_, kBytes, cudaMemcpyDeviceToHost, first_),
              cudaSuccess);
    return result;
  }
  void finish() { EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess); }
  [[nodiscard]] bool has_arrived(float value) const { return pinned_[kCount - 1] == value; }

  cudaStream_t first_ = nullptr;
  cudaStream_t second_ = nullptr;
  cudaEvent_t event_ = nullptr;
  float* device_ = nullptr;
  float* pinned_ = nullptr;
};
using StandInDeathTest = StandIn;

TEST_F(StandIn, WorkIsDoneWhenTheHostWaits) {
  send(1.0F, first_);
  EXPECT_FALSE(has_arrived(1.0F));
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_FALSE(has_arrived(1.0F));
  finish();
  EXPECT_TRUE(has_arrived(1.0F));
}

TEST_F(StandIn, AWaitForAnEventDoesWhatStandsBeforeItAndNoMore) {
  send(1.0F, first_);
  EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  send(2.0F, first_);
  EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
  EXPECT_FALSE(has_arrived(1.0F));
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_TRUE(has_arrived(1.0F));
  finish();
  EXPECT_TRUE(has_arrived(2.0F));
  send(3.0F, first_);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_TRUE(has_arrived(2.0F));
  int asked = 1;
  for (; cudaStreamQuery(first_) == cudaErrorNotReady; ++asked) {
  }
  EXPECT_EQ(asked, 3) << "a copy for each time that it was not ready";
  EXPECT_TRUE(has_arrived(3.0F));
}

TEST_F(StandIn, CopiesTakePageableMemoryAtOnceAndPinnedMemoryLate) {
  std::vector<float> pageable(kCount, 1.0F);
  EXPECT_EQ(cudaMemcpyAsync(device_, pageable.data(), kBytes, cudaMemcpyDefault, first_),
            cudaSuccess);
  pageable.assign(kCount, 2.0F);
  EXPECT_EQ(cudaMemcpyAsync(pageable.data(), device_, kBytes, cudaMemcpyDefault, first_),
            cudaSuccess);
  EXPECT_THAT(pageable, Each(1.0F));
  std::fill_n(pinned_, kCount, 3.0F);
  EXPECT_EQ(cudaMemcpyAsync(device_, pinned_, kBytes, cudaMemcpyDefault, first_), cudaSuccess);
  std::fill_n(pinned_, kCount, 4.0F);
  EXPECT_EQ(cudaMemcpy(pageable.data(), device_, kBytes, cudaMemcpyDefault), cudaSuccess);
  EXPECT_THAT(pageable, Each(1.0F)) << "the default stream does not wait for others";
  finish();
  EXPECT_EQ(cudaMemcpy(pageable.data(), device_, kBytes, cudaMemcpyDefault), cudaSuccess);
  EXPECT_THAT(pageable, Each(4.0F));
}

TEST_F(StandIn, CopiesAreOfTheKindAndWithinTheMemoryThatTheySay) {
  std::vector<float> host(2 * kCount);
  EXPECT_EQ(cudaMemcpy(host.data(), device_, kBytes, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data(), device_, 2 * kBytes, cudaMemcpyDefault), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device_ + 1, 0, kBytes), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(StandIn, MemoryIsNotZeroAtFirstAndComesToAnEnd) {
  fetch(first_);
  finish();
  EXPECT_THAT(std::vector<float>(pinned_, pinned_ + kCount),
              Each(testing::Truly([](float value) { return std::isnan(value); })));
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &all_bytes), cudaSuccess);
  EXPECT_EQ(all_bytes, 1U << 20U);
  EXPECT_EQ(free_bytes, all_bytes - kBytes);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, free_bytes + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&memory, free_bytes), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
}

__global__ void number_kernel(float* to) {
  to[blockIdx.x * blockDim.x + threadIdx.x] = static_cast<float>(threadIdx.x);
}

TEST_F(StandIn, ALaunchIsForAGpuOfItsOwnStreamAndWithinWhatAGpuHas) {
  EXPECT_EQ(launch(1, kCount, 0, number_kernel, device_), cudaSuccess);
  EXPECT_EQ(launch(0, kCount, 0, number_kernel, device_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, kMostThreads + 1, 0, number_kernel, device_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, kCount, kSharedBytesUnasked + 8, number_kernel, device_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(number_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kMostSharedBytes)),
            cudaSuccess);
  EXPECT_EQ(launch(1, kCount, kSharedBytesUnasked + 8, number_kernel, device_), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(number_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kMostSharedBytes) + 8),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(launch(1, kCount, 0, number_kernel, device_), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

/// What each thread gets of the others of its warp and block, in order of their threads.
__global__ void exchange_kernel(float* to) {
  const int thread = static_cast<int>(threadIdx.x);
  const float below = __shfl_sync(kWholeWarp, static_cast<float>(thread), thread - 1);
  const double across = __shfl_xor_sync(kWholeWarp, static_cast<double>(thread), 16);
  const unsigned odd = __ballot_sync(kWholeWarp, thread % 2);
  __shared__ float turned[kCount];
  turned[kCount - 1 - threadIdx.x] = below + static_cast<float>(across);
  const int any = __syncthreads_or(thread == 63);
  const int none = __syncthreads_or(thread == 64);
  to[threadIdx.x] = odd == 0xAAAAAAAAU && any == 1 && none == 0 ? turned[threadIdx.x] : -1.0F;
}

TEST_F(StandIn, ThreadsExchangeWordsAndMeet) {
  const std::vector<float> result = result_of(1, kCount, exchange_kernel);
  for (int i = 0; i < static_cast<int>(kCount); ++i) {
    const int thread = static_cast<int>(kCount) - 1 - i;
    const int below = thread % 32 == 0 ? thread + 31 : thread - 1;
    EXPECT_EQ(result[static_cast<std::size_t>(i)], static_cast<float>(below + (thread ^ 16)))
        << "from thread " << thread;
  }
}

/// The last block of four writes whether shared memory was spoilt; all leave something there.
__global__ void leave_kernel(float* to) {
  __shared__ float left[kCount];
  to[threadIdx.x] = left[threadIdx.x];
  left[threadIdx.x] = 1.0F;
}

TEST_F(StandIn, SharedMemoryHoldsNothingBeforeABlock) {
  EXPECT_THAT(result_of(4, kCount, leave_kernel),
              Each(testing::Truly([](float value) { return std::isnan(value); })));
}

/// A barrier is missing between a thread's write and its neighbour's read.
__global__ void hasty_kernel(float* to) {
  __shared__ float values[kCount];
  values[threadIdx.x] = 1.0F;
  to[threadIdx.x] = values[(threadIdx.x + 1) % kCount];
}

TEST_F(StandIn, AForgottenBarrierShows) {
  EXPECT_THAT(result_of(1, kCount, hasty_kernel), testing::Not(Each(1.0F)));
}

/// A thread copies its number to shared memory, and reads it before and after it has waited.
__global__ void copy_kernel(float* to) {
  __shared__ float values[kCount];
  to[threadIdx.x] = static_cast<float>(threadIdx.x);
  copy_later(&values[threadIdx.x], &to[threadIdx.x], sizeof(float));
  const bool was_there = values[threadIdx.x] == to[threadIdx.x];
  finish_copies();
  to[threadIdx.x] = was_there ? -1.0F : values[threadIdx.x];
}

TEST_F(StandIn, CopiesToSharedMemoryArriveWhenAThreadWaits) {
  const std::vector<float> result = result_of(1, kCount, copy_kernel);
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(result[i], static_cast<float>(i));
  }
}

TEST_F(StandIn, ThreadsOfTheHostHaveStreamsOfTheirOwn) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  std::array<int, kThreads> right{};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      cudaStream_t stream = nullptr;
      void* memory = nullptr;
      bool is_right = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
                      cudaMalloc(&memory, kBytes) == cudaSuccess;
      for (int round = 0; round < kRounds; ++round) {
        std::vector<float> there(kCount, static_cast<float>(100 * thread + round));
        std::vector<float> back(kCount);
        is_right = is_right && cudaMemcpyAsync(memory, there.data(), kBytes, cudaMemcpyDefault,
                                               stream) == cudaSuccess;
        is_right = is_right && cudaMemcpyAsync(back.data(), memory, kBytes, cudaMemcpyDefault,
                                               stream) == cudaSuccess;
        right[static_cast<std::size_t>(thread)] += is_right && there == back ? 1 : 0;
      }
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(right, Each(kRounds));
}

TEST_F(StandInDeathTest, TheHostMustNotTouchDeviceMemory) {
  EXPECT_DEATH(static_cast<void>(*const_cast<volatile float*>(device_)),
               "the host touched device memory");
}

TEST_F(StandInDeathTest, MemoryEndsAndIsGoneWhereItWasFreed) {
  EXPECT_DEATH(static_cast<void>(result_of(2, kCount, number_kernel)),
               "block 1, thread 0 touched .*no tensor's memory");
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_DEATH(
      {
        static_cast<void>(launch(1, kCount, 0, number_kernel, static_cast<float*>(memory)));
        finish();
      },
      "touched .*no tensor's memory");
}

TEST_F(StandInDeathTest, AWriteJustBehindMemoryShowsWhenItIsFreed) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, kBytes - sizeof(float)), cudaSuccess);
  EXPECT_EQ(launch(1, kCount - 1, 0, number_kernel, static_cast<float*>(memory)), cudaSuccess);
  finish();
  EXPECT_DEATH(
      {
        static_cast<void>(launch(1, kCount, 0, number_kernel, static_cast<float*>(memory)));
        finish();
        static_cast<void>(cudaFree(memory));
      },
      "wrote just before or behind the 252 bytes");
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

__global__ void half_warp_kernel(float* to) {
  if (threadIdx.x % 32 < 16) {
    __syncwarp();
  }
  to[threadIdx.x] = 0.0F;
}
__global__ void two_places_kernel(float* to) {
  if (threadIdx.x % 32 < 16) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  to[threadIdx.x] = 0.0F;
}
__global__ void one_warp_kernel(float* to) {
  if (threadIdx.x < 32) {
    __syncthreads();
  }
  to[threadIdx.x] = 0.0F;
}
__global__ void part_of_warp_kernel(float* to) {
  to[threadIdx.x] = __shfl_xor_sync(0xFFFFU, 1.0F, 1);
}

__global__ void no_wait_kernel(float* to) {
  __shared__ float values[kCount];
  copy_later(&values[threadIdx.x], to, sizeof(float));
}
__global__ void crooked_copy_kernel(float* to) {
  __shared__ float values[kCount];
  copy_later(&values[1], to, 4 * sizeof(float));
}

TEST_F(StandInDeathTest, CopiesToSharedMemoryAreAlignedAndWaitedFor) {
  EXPECT_DEATH(static_cast<void>(result_of(1, kCount, no_wait_kernel)), "before its copies");
  EXPECT_DEATH(static_cast<void>(result_of(1, kCount, crooked_copy_kernel)), "multiples of its");
}

TEST_F(StandInDeathTest, AStopThatNotAllThreadsReachIsAnError) {
  const char* const kWithin = "threads of one warp stop at different things";
  EXPECT_DEATH(static_cast<void>(result_of(1, kCount, half_warp_kernel)), kWithin);
  EXPECT_DEATH(static_cast<void>(result_of(1, kCount, two_places_kernel)), kWithin);
  EXPECT_DEATH(static_cast<void>(result_of(1, kCount, one_warp_kernel)),
               "warps of one block stop at different things");
  EXPECT_DEATH(static_cast<void>(result_of(1, kCount, part_of_warp_kernel)), "not one of 32");
}

}  // namespace
}  // namespace standin

namespace strata::ops::cuda {

/// The name that the room's kernels share.
__global__ void fill_shared_kernel(int count) {
  extern __shared__ double memory_of_block[];
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 32) {
    memory_of_block[i] = 1.0;
  }
}

}  // namespace strata::ops::cuda

namespace standin {
namespace {

TEST_F(StandInDeathTest, SharedMemoryBeyondWhatWasAskedForIsAnError) {
  constexpr int kDoubles = 128;
  const auto kernel = strata::ops::cuda::fill_shared_kernel;
  EXPECT_EQ(launch(2, 32, kDoubles * sizeof(double), kernel, kDoubles), cudaSuccess);
  finish();
  EXPECT_DEATH(
      {
        static_cast<void>(launch(2, 32, kDoubles * sizeof(double), kernel, kDoubles + 1));
        finish();
      },
      "beyond what the launch asked for");
}

}  // namespace
}  // namespace standin
