#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

// What of CUDA cannot be recorded the stand-in refuses, and what is recorded waits as other work.
namespace standin {
namespace {

constexpr std::size_t kBytes = 64;

class Recording : public testing::Test {
 protected:
  Recording() {
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&device_, kBytes), cudaSuccess);
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocHost(&memory, kBytes), cudaSuccess);
    pinned_ = static_cast<unsigned char*>(memory);
  }
  ~Recording() override {
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  cudaError_t begin() { return cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal); }
  cudaError_t end() { return cudaStreamEndCapture(stream_, &graph_); }
  cudaError_t fill(int value) { return cudaMemsetAsync(device_, value, kBytes, stream_); }
  cudaError_t fetch() {
    return cudaMemcpyAsync(pinned_, device_, kBytes, cudaMemcpyDeviceToHost, stream_);
  }

  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  void* device_ = nullptr;
  unsigned char* pinned_ = nullptr;
};

TEST_F(Recording, IsDoneWhenTheHostWaitsForALaunchAndAsOften) {
  ASSERT_EQ(begin(), cudaSuccess);
  EXPECT_EQ(fetch(), cudaSuccess);
  EXPECT_EQ(fill(2), cudaSuccess);
  ASSERT_EQ(end(), cudaSuccess);
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph_, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
  pinned_[0] = 0;
  EXPECT_EQ(fill(1), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(ready, stream_), cudaSuccess);
  EXPECT_EQ(pinned_[0], 0);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(pinned_[0], 1);
  EXPECT_EQ(cudaGraphLaunch(ready, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(pinned_[0], 2);
  EXPECT_EQ(cudaGraphExecDestroy(ready), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(ready, stream_), cudaErrorInvalidValue);
}

TEST_F(Recording, IsSpoiltByWhatWaitsOrTakesMemory) {
  void* memory = nullptr;
  std::vector<unsigned char> pageable(kBytes);
  const auto spoils = [&](const auto& call) {
    EXPECT_EQ(begin(), cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    return end() == cudaErrorStreamCaptureInvalidated && graph_ == nullptr;
  };
  EXPECT_TRUE(spoils([&] { return cudaStreamSynchronize(stream_); }));
  EXPECT_TRUE(spoils([&] { return cudaStreamQuery(stream_); }));
  EXPECT_TRUE(spoils([&] { return cudaDeviceSynchronize(); }));
  EXPECT_TRUE(spoils([&] { return cudaMalloc(&memory, kBytes); }));
  EXPECT_TRUE(spoils([&] { return cudaFree(device_); }));
  EXPECT_TRUE(spoils([&] {
    return cudaMemcpyAsync(device_, pageable.data(), kBytes, cudaMemcpyHostToDevice, stream_);
  }));
  // The stream is as before.
  EXPECT_EQ(fill(3), cudaSuccess);
  EXPECT_EQ(fetch(), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(pinned_[0], 3);
}

}  // namespace
}  // namespace standin
