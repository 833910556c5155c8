#include "strata/ops/context.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/convolution.hpp"
#include "strata/ops/elementwise.hpp"
#include "strata/ops/loss.hpp"
#include "strata/ops/matmul.hpp"
#include "strata/ops/split_cross_entropy.hpp"

#include "cases.hpp"

namespace strata::ops {
namespace {

using device::Buffer;
using device::Device;

/// Six rows of five zeros, and targets of which the fourth and the sixth are not in [0, 5).
struct BadTargets {
  explicit BadTargets(Context& context)
      : logits_memory(context.device(), 6 * 5 * 4),
        target_memory(context.device(), 6 * 8),
        logits(logits_memory.view(0, {6, 5}, DType::kFloat32)),
        targets(target_memory.view(0, {6}, DType::kInt64)) {
    std::array<std::int64_t, 6> numbers{0, 4, 1, 5, 2, -1};
    device::copy_tensor(TensorView(std::span<std::int64_t>(numbers), Shape{6}), targets,
                        context.stream());
    context.synchronize();
  }

  Buffer logits_memory;
  Buffer target_memory;
  TensorView logits;
  TensorView targets;
};

/// The bad row in the loss sums that an operation writes.
template <typename Operation>
std::int64_t bad_row_of(Context& context, const Operation& operation) {
  const std::vector<double> sums = test::loss_of(context, operation);
  EXPECT_EQ(sums[3], sums[2] < 0.0 ? 0.0 : 5.0);
  return static_cast<std::int64_t>(sums[2]);
}

TEST(CudaContext, OfTargetsOutsideTheFirstIsTold) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context context = Context::cuda(Device::cuda(0));
  const BadTargets bad(context);
  const Buffer parts_memory(context.device(), 6 * kCrossEntropyParts * 4);
  const Buffer log_sums(context.device(), 6 * 4);
  const TensorView parts = parts_memory.view(0, {1, 6, kCrossEntropyParts}, DType::kFloat32);
  cross_entropy_parts(context, bad.logits, bad.targets, 0, bad.logits.shape().back(), parts);
  // Rows that do not count may have any target.
  for (const std::int64_t valid : {6, 3}) {
    const std::int64_t expected = valid == 6 ? 3 : -1;
    EXPECT_EQ(bad_row_of(context,
                         [&](const TensorView& sums) {
                           cross_entropy(context, bad.logits, bad.targets, valid, 1.0, {}, sums);
                         }),
              expected);
    EXPECT_EQ(bad_row_of(context,
                         [&](const TensorView& sums) {
                           combine_cross_entropy(context, {}, parts, bad.targets, 5, valid,
                                                 log_sums.view(0, {6}, DType::kFloat32), sums);
                         }),
              expected);
  }
}

/// The largest relative error of a product of square matrices, c = a b^T, whose numbers need more
/// bits than tf32 has.
template <typename Product>
double largest_error(Float32Products products, const Product& product) {
  constexpr std::int64_t kSize = 64;
  Context context = Context::cuda(Device::cuda(0), {.float32_products = products});
  const Buffer memory(context.device(), 3 * kSize * kSize * 4);
  std::vector<float> numbers(static_cast<std::size_t>(kSize * kSize));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = 1.0F + static_cast<float>(i % 97) / 4096.0F;
  }
  const Shape shape{kSize, kSize};
  const auto part = [&](std::int64_t i) {
    return memory.view(i * kSize * kSize * 4, shape, DType::kFloat32);
  };
  device::copy_tensor(TensorView(std::span<float>(numbers), shape), part(0), context.stream());
  device::copy_tensor(part(0), part(1), context.stream());
  product(context, part(0), part(1), part(2));
  std::vector<float> results(numbers.size());
  device::copy_tensor(part(2), TensorView(std::span<float>(results), shape), context.stream());
  context.synchronize();
  double largest = 0.0;
  for (std::size_t row = 0; row < kSize; ++row) {
    for (std::size_t column = 0; column < kSize; ++column) {
      double exact = 0.0;
      for (std::size_t k = 0; k < kSize; ++k) {
        exact += static_cast<double>(numbers[row * kSize + k]) *
                 static_cast<double>(numbers[column * kSize + k]);
      }
      const double error = std::abs(results[row * kSize + column] - exact) / exact;
      largest = std::max(largest, error);
    }
  }
  return largest;
}

/// A weight gradient of few elements whose sums have many terms, from memory that starts `offset`
/// bytes into an allocation.
std::vector<float> long_sums(Context& context, std::int64_t offset) {
  constexpr std::int64_t kRows = 32768;
  constexpr std::int64_t kWidth = 64;
  constexpr std::int64_t kBytes = kRows * kWidth * 2;
  const Shape shape{kRows, kWidth};
  const Shape result{kWidth, kWidth};
  const Buffer memory(context.device(), 2 * kBytes + kWidth * kWidth * 4 + offset);
  std::vector<BFloat16> numbers(static_cast<std::size_t>(shape.count()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = BFloat16(static_cast<float>(i * 2654435761U % 1009) / 1009.0F - 0.5F);
  }
  const TensorView a = memory.view(offset, shape, DType::kBfloat16);
  const TensorView b = memory.view(offset + kBytes, shape, DType::kBfloat16);
  const TensorView c = memory.view(offset + 2 * kBytes, result, DType::kFloat32);
  device::copy_tensor(TensorView(std::span<BFloat16>(numbers), shape), a, context.stream());
  std::ranges::reverse(numbers);
  device::copy_tensor(TensorView(std::span<BFloat16>(numbers), shape), b, context.stream());
  matmul(context, a, b, c, {.transpose_a = Transpose::kYes});
  std::vector<float> sums(static_cast<std::size_t>(result.count()));
  device::copy_tensor(c, TensorView(std::span<float>(sums), result), context.stream());
  context.synchronize();
  return sums;
}

TEST(CudaContext, SumsInPartsHaveTheSameBitsAgain) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  constexpr int kTimes = 20;
  Context whole = Context::cuda(Device::cuda(0));
  Context in_parts = Context::cuda(Device::cuda(0), {.split_k = Switch::kOn});
  const std::vector<float> first = long_sums(in_parts, 0);
  for (int i = 1; i < kTimes; ++i) {
    ASSERT_EQ(long_sums(in_parts, i * 4096), first) << i;
  }
  const std::vector<float> expected = long_sums(whole, 0);
  for (std::size_t i = 0; i < first.size(); ++i) {
    // Tensor cores truncate; a sum of random terms would have a size of 15.
    ASSERT_NEAR(first[i], expected[i], 1e-3 * (15.0 + std::abs(expected[i]))) << i;
  }
}

TEST(CudaContext, Float32ProductsKeepTheirBitsUnlessTf32IsAllowed) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  const auto by_matmul = [](Context& context, const TensorView& a, const TensorView& b,
                            const TensorView& c) {
    matmul(context, a, b, c, {.transpose_b = Transpose::kYes});
  };
  const auto by_convolution = [](Context& context, const TensorView& a, const TensorView& b,
                                 const TensorView& c) {
    const ConvolutionShape shape{
        .images = a.shape()[0], .in_channels = a.shape()[1], .out_channels = b.shape()[0]};
    convolution_forward(context, shape, a, b, c);
  };
  EXPECT_LT(largest_error(Float32Products::kFull, by_matmul), 1e-6);
  EXPECT_LT(largest_error(Float32Products::kFull, by_convolution), 1e-6);
  // The library may still take kernels of full precision.
  EXPECT_LT(largest_error(Float32Products::kTf32, by_matmul), 1e-3);
  EXPECT_LT(largest_error(Float32Products::kTf32, by_convolution), 1e-3);
}

TEST(CudaContext, TensorsOfAnotherPlaceAreRefused) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context gpu = Context::cuda(Device::cuda(0));
  Context cpu(1);
  const Buffer on_gpu(gpu.device(), 64);
  const Buffer on_host(cpu.device(), 64);
  const TensorView there = on_gpu.view(0, {4, 4}, DType::kFloat32);
  const TensorView here = on_host.view(0, {4, 4}, DType::kFloat32);
  EXPECT_THROW(add(gpu, here, there), std::logic_error);
  EXPECT_THROW(add(cpu, here, there), std::logic_error);
  EXPECT_THROW(fill_zero(gpu, here), std::logic_error);
  EXPECT_THROW(matmul(gpu, there, there, here), std::logic_error);
  EXPECT_THROW(matmul(cpu, there, here, here), std::logic_error);
}

TEST(CudaContext, HeadsOfMoreThan256ElementsAreRefused) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context context = Context::cuda(Device::cuda(0));
  constexpr AttentionShape kShape{.head_size = 257};
  const Buffer memory(context.device(), 3 * 257 * 4);
  const TensorView qkv = memory.view(0, {1, 3 * 257}, DType::kFloat32);
  const TensorView y = memory.view(0, {1, 257}, DType::kFloat32);
  const TensorView sums = memory.view(0, {1, 1, 1}, DType::kFloat32);
  const TensorView cache = memory.view(0, {1, 1, 257}, DType::kFloat32);
  const auto refuses = [](const auto& call) {
    EXPECT_THAT(call, testing::ThrowsMessage<Error>(
                          testing::HasSubstr("heads of at most 256 elements, these have 257")));
  };
  refuses([&] { causal_attention_forward(context, kShape, qkv, y, sums); });
  refuses([&] { causal_attention_backward(context, kShape, qkv, y, sums, y, qkv); });
  const std::array<KeyValueCache, 1> caches{{{cache, cache, 0}}};
  refuses([&] { cached_attention(context, kShape, qkv, caches, 0, y); });
}

TEST(CudaContext, MovesWithItsStreamAndLibraries) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  Context first = Context::cuda(Device::cuda(0));
  const Buffer memory(first.device(), 3 * 64);
  const auto matrix = [&](std::int64_t index) {
    return memory.view(64 * index, {4, 4}, DType::kFloat32);
  };
  std::array<float, 16> ones;
  ones.fill(1.0F);
  device::copy_tensor(TensorView(std::span<float>(ones), Shape{4, 4}), matrix(0));
  matmul(first, matrix(0), matrix(0), matrix(1));
  Context second(std::move(first));
  matmul(second, matrix(0), matrix(1), matrix(2));
  second.synchronize();
  std::array<float, 16> result;
  device::copy_tensor(matrix(2), TensorView(std::span<float>(result), Shape{4, 4}));
  EXPECT_THAT(result, testing::Each(16.0F));
}

}  // namespace
}  // namespace strata::ops
