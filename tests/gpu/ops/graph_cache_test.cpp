#include "strata/ops/graph_cache.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"
#include "strata/device/buffer.hpp"
#include "strata/ops/dropout.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {
namespace {

using device::Buffer;
using device::Device;

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kWidth = 50;

template <typename T>
TensorView view_of(std::vector<T>& elements, const Shape& shape) {
  return {std::span<T>(elements), shape};
}

/// A tensor's elements.
std::vector<float> on_host(Context& context, const TensorView& tensor) {
  std::vector<float> numbers(static_cast<std::size_t>(tensor.count()));
  context.synchronize();
  device::copy_tensor(tensor, view_of(numbers, tensor.shape()));
  return numbers;
}

/// The mask of dropout for kRows samples from `sample` on, on the CPU.
std::vector<std::uint8_t> mask_on_cpu(const RandomStream& stream, std::int64_t sample) {
  Context context(1);
  std::vector<float> x(kRows * kWidth, 1.0F);
  std::vector<std::uint8_t> mask(x.size());
  const Shape shape{kRows, kWidth};
  const TensorView view = view_of(x, shape);
  dropout_forward(context, view, 0.5, stream, {sample}, view, view_of(mask, shape));
  return mask;
}

TEST(CudaGraphCache, RecordedDropoutMovesWithItsOrigin) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context context = Context::cuda(Device::cuda(0));
  const RandomStream stream(3, RandomPurpose::kDropout, 4);
  const Buffer memory(context.device(), kRows * kWidth * 4);
  const Buffer mask_memory(context.device(), kRows * kWidth);
  const TensorView x = memory.view(0, {kRows, kWidth}, DType::kFloat32);
  const TensorView mask = mask_memory.view(0, {kRows, kWidth}, DType::kUint8);
  GraphCache cache(context);
  cache.enable();
  std::int64_t calls = 0;
  for (std::int64_t step = 0; step < 5; ++step) {
    const std::int64_t origin = 1000 * step;
    set_sample_origin(context, origin);
    cache.run({1, 2}, [&] {
      ++calls;
      EXPECT_EQ(cache.is_recording(), step == 1);
      dropout_forward(context, x, 0.5, stream, {origin + 7}, x, mask);
    });
    std::vector<std::uint8_t> made(kRows * kWidth);
    context.synchronize();
    device::copy_tensor(mask, view_of(made, mask.shape()));
    EXPECT_EQ(made, mask_on_cpu(stream, origin + 7)) << "step " << step;
  }
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(cache.graphs(), 1);
}

TEST(CudaGraphCache, RecordsAnewWhenScratchMemoryHasMoved) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context context = Context::cuda(Device::cuda(0));
  const Buffer memory(context.device(), (1 << 20) * 4);
  const TensorView x = memory.view(0, {1 << 10, 1 << 10}, DType::kFloat32);
  const TensorView narrow = x.flat_slice(0, 128 * 8).reshaped({128, 8});
  const Buffer sums(context.device(), (1 << 10) * 4);
  const auto sum = [&](const TensorView& of) {
    column_sum(context, of, sums.view(0, {of.shape()[1]}, DType::kFloat32), Accumulate::kOverwrite);
  };
  std::vector<float> ones(1 << 20, 1.0F);
  device::copy_tensor(view_of(ones, x.shape()), x);
  GraphCache cache(context);
  cache.enable();
  std::int64_t calls = 0;
  const auto run = [&] {
    cache.run({0}, [&] {
      ++calls;
      sum(narrow);
    });
    return on_host(context, sums.view(0, {8}, DType::kFloat32));
  };
  const std::vector<float> expected(8, 128.0F);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run(), expected);
  }
  EXPECT_EQ(calls, 2);
  // Takes more scratch memory than there is so far.
  sum(x);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run(), expected);
  }
  EXPECT_EQ(calls, 4);
}

TEST(CudaGraphCache, DoesOtherWorkUnderOtherKeysAndNothingOfItselfBeforeItIsEnabled) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context context = Context::cuda(Device::cuda(0));
  GraphCache cache(context);
  std::int64_t calls = 0;
  for (int i = 0; i < 3; ++i) {
    cache.run({0}, [&] { ++calls; });
  }
  EXPECT_EQ(calls, 3);
  cache.enable();
  for (std::int64_t key = 0; key < 3; ++key) {
    cache.run({key}, [&] { ++calls; });
  }
  EXPECT_EQ(calls, 6);
  EXPECT_EQ(cache.graphs(), 0);
  Context cpu(1);
  EXPECT_THROW(GraphCache(cpu).enable(), std::logic_error);
}

TEST(CudaGraphCache, SaysWhatToDoWhereWorkCannotBeRecorded) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context context = Context::cuda(Device::cuda(0));
  GraphCache cache(context);
  cache.enable();
  const auto run = [&](std::int64_t key, const std::function<void()>& work) {
    cache.run({key}, [] {});
    cache.run({key}, work);
  };
  try {
    run(0, [&] { context.synchronize(); });
    ADD_FAILURE() << "a wait was recorded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kPeer);
    EXPECT_THAT(error.what(), testing::HasSubstr("set run.cuda_graphs = off"));
  }
  EXPECT_FALSE(cache.is_recording());
  EXPECT_THROW(run(1, [] { fail(ExitCode::kData, "of the work"); }), Error);
  EXPECT_THROW(run(2, [] { throw std::invalid_argument("of the work"); }), std::invalid_argument);
  EXPECT_FALSE(cache.is_recording());
  EXPECT_EQ(cache.graphs(), 0);
}

}  // namespace
}  // namespace strata::ops
