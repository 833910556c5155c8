#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "strata/device/shared_library.hpp"

#include "attention/cudnn_attention_graph.hpp"

// What the real cuDNN says of attention's graphs, for GPUs that are described to it. It compiles
// its kernels for them; nothing is run.
namespace strata::ops::cuda {
namespace {

struct Gpu {
  const char* name;
  int version;  ///< compute capability 9.0 is 900
  int processors;
  int shared_bytes;  ///< that a block may have
};

constexpr Gpu kGpus[] = {{"A100", 800, 108, 166912}, {"H100", 900, 132, 232448}};

GraphDescriptor described(const GraphLibrary& library, const Gpu& gpu) {
  const std::string text = fmt::format(
      R"({{"cudaDeviceId":0,"deviceVer":{},"driverVer":13000,"deviceName":"{}",)"
      R"("multiProcessorCount":{},"maxSharedMemoryPerBlockOptin":{},)"
      R"("maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,)"
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
      R"("regsPerBlock":65536,"maxRegistersPerSM":65536,"warpSize":32,"maxCtasPerSM":32,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"l2CacheSize":41943040,)"
      R"("smClockRateKHz":1410000,"memClockRateKHz":1593000,"totalGlobalMem":85899345920,)"
      R"("pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1}})",
      gpu.version, gpu.name, gpu.processors, gpu.shared_bytes);
  GraphDescriptor device(library, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, std::span<const char>(text));
  EXPECT_TRUE(device.finish());
  return device;
}

class CudnnPlans : public testing::Test {
 protected:
  void SetUp() override {
    constexpr std::int64_t kFirstThatKnowsDescribedGpus = 91100;
    if (!cudnn_.loaded() || cudnn_.version() < kFirstThatKnowsDescribedGpus) {
      GTEST_SKIP() << "no cuDNN of 9.11 or later";
    }
    if (!device::nvrtc_library(CUDART_VERSION / 1000).loaded()) {
      GTEST_SKIP() << "no NVRTC, which cuDNN compiles its kernels with";
    }
  }

  /// The plan of a shape's first part.
  std::optional<GraphPlan> plan(const Gpu& gpu, AttentionPass pass, const AttentionShape& shape) {
    const GraphDescriptor device = described(library_, gpu);
    const AttentionPart part(pass, shape);
    OperationGraph graph(library_);
    add_attention(pass, part, graph);
    return plan_attention(pass, part, graph, {.device = &device});
  }

  /// Expects plans of both passes on each GPU.
  void expect_plans(const AttentionShape& shape) {
    for (const Gpu& gpu : kGpus) {
      SCOPED_TRACE(fmt::format("{} sequences of {} tokens, {} x {} heads of {} on an {}",
                               shape.sequences, shape.tokens, shape.kv_heads, shape.queries,
                               shape.head_size, gpu.name));
      EXPECT_TRUE(plan(gpu, AttentionPass::kForward, shape)) << "forward";
      EXPECT_TRUE(plan(gpu, AttentionPass::kBackward, shape)) << "backward";
    }
  }

  const CudnnLibrary cudnn_;
  const GraphLibrary library_{cudnn_};
};

/// Where a query head begins in qkv, y and log_sums.
using HeadPlace = std::array<std::int64_t, 3>;

std::set<HeadPlace> places_of(const AttentionShape& shape) {
  std::set<HeadPlace> places;
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (std::int64_t head = 0; head < shape.heads(); ++head) {
      const std::int64_t kv_head = head / shape.queries;
      const std::int64_t query = head % shape.queries;
      const std::int64_t row = sequence * shape.tokens;
      places.insert(
          {row * shape.qkv_width() + (kv_head * (shape.queries + 2) + query) * shape.head_size,
           row * shape.width() + head * shape.head_size,
           (sequence * shape.heads() + head) * shape.tokens});
    }
  }
  return places;
}

/// As a shape's parts and their strides say.
std::set<HeadPlace> places_of_parts(const AttentionPart& layout) {
  std::set<HeadPlace> places;
  for (std::int64_t part = 0; part < layout.parts(); ++part) {
    for (std::int64_t batch = 0; batch < layout.batches; ++batch) {
      for (std::int64_t head = 0; head < layout.heads; ++head) {
        places.insert(
            {layout.qkv_offset(part) + batch * layout.qkv_strides[0] + head * layout.qkv_strides[1],
             layout.y_offset(part) + batch * layout.y_strides[0] + head * layout.y_strides[1],
             layout.log_sums_offset(part) + (batch * layout.heads + head) * layout.tokens});
      }
    }
  }
  return places;
}

TEST(AttentionParts, CoverEveryHead) {
  struct Expected {
    AttentionShape shape;
    std::int64_t sequence_parts;
    std::int64_t head_parts;
  };
  // What a backward pass keeps decides how many they are.
  for (const Expected& expected :
       {Expected{{.sequences = 8, .tokens = 1024, .kv_heads = 12, .head_size = 64}, 1, 1},
        Expected{{.sequences = 64, .tokens = 1024, .kv_heads = 12, .head_size = 64}, 4, 1},
        Expected{{.sequences = 4, .tokens = 4096, .kv_heads = 32, .head_size = 128}, 4, 2},
        Expected{
            {.sequences = 3, .tokens = 70, .kv_heads = 2, .queries = 2, .head_size = 40}, 3, 1},
        Expected{{.sequences = 2, .tokens = 4096, .kv_heads = 6, .queries = 8, .head_size = 128},
                 2,
                 3}}) {
    SCOPED_TRACE(
        fmt::format("{} sequences of {} tokens", expected.shape.sequences, expected.shape.tokens));
    const AttentionPart backward(AttentionPass::kBackward, expected.shape);
    EXPECT_EQ(backward.sequence_parts, expected.sequence_parts);
    EXPECT_EQ(backward.head_parts, expected.head_parts);
    EXPECT_LE(backward.weights(), AttentionPart::kMaxWeights);
    EXPECT_EQ(places_of_parts(backward), places_of(expected.shape));
    const AttentionPart forward(AttentionPass::kForward, expected.shape);
    EXPECT_EQ(forward.parts(), expected.shape.queries == 1 ? 1 : expected.shape.sequences);
    EXPECT_EQ(places_of_parts(forward), places_of(expected.shape));
  }
}

TEST_F(CudnnPlans, OfHeadsOfTheirOwn) {
  expect_plans({.sequences = 8, .tokens = 1024, .kv_heads = 12, .head_size = 64});
  expect_plans({.sequences = 1, .tokens = 1, .kv_heads = 2, .head_size = 64});
  expect_plans({.sequences = 2, .tokens = 203, .kv_heads = 3, .head_size = 128});
}

TEST_F(CudnnPlans, OfGroupedHeads) {
  expect_plans({.sequences = 2, .tokens = 1024, .kv_heads = 2, .queries = 4, .head_size = 128});
  expect_plans({.sequences = 2, .tokens = 70, .kv_heads = 2, .queries = 2, .head_size = 40});
}

TEST_F(CudnnPlans, OfPartsOfALargeBackwardPass) {
  expect_plans({.sequences = 1, .tokens = 4096, .kv_heads = 8, .queries = 8, .head_size = 128});
}

TEST_F(CudnnPlans, AreNotThereForOddHeads) {
  for (const Gpu& gpu : kGpus) {
    const AttentionShape shape{.sequences = 1, .tokens = 50, .kv_heads = 2, .head_size = 65};
    EXPECT_FALSE(plan(gpu, AttentionPass::kForward, shape)) << gpu.name;
    EXPECT_FALSE(plan(gpu, AttentionPass::kBackward, shape)) << gpu.name;
  }
}

}  // namespace
}  // namespace strata::ops::cuda
