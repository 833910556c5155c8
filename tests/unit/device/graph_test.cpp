#include "strata/device/graph.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>

#include <gtest/gtest.h>

#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/gpu_info.hpp"

#include "gpu_test.hpp"

namespace strata::device::graph_test {
namespace {

constexpr std::int64_t kCount = 4;

/// Two tensors of a GPU, and its stream.
struct Bench {
  Bench()
      : stream(Device::cuda(0)),
        memory(Device::cuda(0), 2 * kCount * 8),
        from(memory.view(0, {kCount}, DType::kInt64)),
        to(memory.view(kCount * 8, {kCount}, DType::kInt64)) {}

  void set(const TensorView& tensor, std::int64_t value) {
    std::array<std::int64_t, kCount> numbers{};
    numbers.fill(value);
    stream.synchronize();
    copy_tensor(TensorView(std::span<std::int64_t>(numbers), {kCount}), tensor);
  }
  [[nodiscard]] std::int64_t last(const TensorView& tensor) {
    std::array<std::int64_t, kCount> numbers{};
    stream.synchronize();
    copy_tensor(tensor, TensorView(std::span<std::int64_t>(numbers), {kCount}));
    return numbers.back();
  }
  [[nodiscard]] Graph recorded() {
    return {stream, [&] { copy_tensor(from, to, stream); }};
  }

  Stream stream;
  Buffer memory;
  TensorView from;
  TensorView to;
};

TEST_F(Cuda, AGraphRunsOncePerLaunch) {
  Bench bench;
  bench.set(bench.from, 1);
  const Graph graph = bench.recorded();
  EXPECT_EQ(bench.last(bench.to), 0);
  graph.launch(bench.stream);
  EXPECT_EQ(bench.last(bench.to), 1);
  bench.set(bench.from, 2);
  EXPECT_EQ(bench.last(bench.to), 1);
  Graph moved = bench.recorded();
  moved = Graph(bench.recorded());
  moved.launch(bench.stream);
  graph.launch(bench.stream);
  EXPECT_EQ(bench.last(bench.to), 2);
}

TEST_F(Cuda, AFailedCaptureIsAnErrorAndTheStreamStaysUsable) {
  Bench bench;
  bench.set(bench.from, 3);
  EXPECT_THROW(Graph(bench.stream, [&] { bench.stream.synchronize(); }), Error);
  EXPECT_THROW(Graph(bench.stream, [] { throw std::invalid_argument("of the work"); }),
               std::invalid_argument);
  copy_tensor(bench.from, bench.to, bench.stream);
  EXPECT_EQ(bench.last(bench.to), 3);
  bench.recorded().launch(bench.stream);
  EXPECT_EQ(bench.last(bench.to), 3);
}

TEST(Graph, IsForGpus) {
  Stream stream(Device::cpu());
  EXPECT_THROW(Graph(stream, [] {}), std::logic_error);
}

}  // namespace
}  // namespace strata::device::graph_test
