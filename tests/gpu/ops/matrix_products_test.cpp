#include "matrix_products.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/random.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/device.hpp"

namespace strata::ops::test {
namespace {

constexpr std::int64_t kRows = 64;

/// -1, 0 and 1: every sum of products is exact, in whatever order and width it is made.
std::vector<float> small_numbers(std::int64_t count, std::uint64_t seed) {
  const RandomStream stream(seed, RandomPurpose::kSynthesise, 0);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(static_cast<int>(3.0 * stream.uniform(i)) - 1);
  }
  return numbers;
}

/// A tensor on the GPU that begins `offset` elements into its memory.
template <typename T>
class OnGpu {
 public:
  OnGpu(const Shape& shape, std::int64_t offset)
      : host_(device::Device::cpu(), shape.count() * kBytes),
        device_(device::Device::cuda(0), (shape.count() + offset) * kBytes),
        view_(device_.view(offset * kBytes, shape, DTypeOf<T>::value)) {}

  void fill(const std::vector<float>& numbers) {
    const TensorView host = host_.view(0, view_.shape(), view_.dtype());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      host.host<T>()[i] = T(numbers[i]);
    }
    device::copy_tensor(host, view_);
  }
  [[nodiscard]] std::vector<float> fetched() {
    const TensorView host = host_.view(0, view_.shape(), view_.dtype());
    device::copy_tensor(view_, host);
    std::vector<float> numbers;
    for (const T& element : host.host<T>()) {
      numbers.push_back(static_cast<float>(element));
    }
    return numbers;
  }
  [[nodiscard]] const TensorView& view() const { return view_; }

 private:
  static constexpr std::int64_t kBytes = sizeof(T);
  device::Buffer host_;
  device::Buffer device_;
  TensorView view_;
};

void hold(std::int64_t columns, std::int64_t offset) {
  const std::vector<float> a = small_numbers(kRows * columns, 1);
  const std::vector<float> b = small_numbers(kRows * columns, 2);
  const auto at = [=](std::int64_t row, std::int64_t column) {
    return static_cast<std::size_t>(row * columns + column);
  };
  std::vector<float> dots;
  std::vector<float> weighted(a.size());
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kRows; ++j) {
      float dot = 0.0F;
      for (std::int64_t k = 0; k < columns; ++k) {
        dot += a[at(i, k)] * b[at(j, k)];
      }
      dots.push_back(dot);
      for (std::int64_t k = 0; k < columns; ++k) {
        weighted[at(i, k)] += static_cast<float>(BFloat16(dot)) * b[at(j, k)];
      }
    }
  }
  for (float& sum : weighted) {
    sum = static_cast<float>(BFloat16(sum));
  }

  Context context = Context::cuda(device::Device::cuda(0));
  const Shape shape{kRows, columns};
  OnGpu<BFloat16> gpu_a(shape, offset);
  OnGpu<BFloat16> gpu_b(shape, offset);
  OnGpu<float> gpu_dots({kRows, kRows}, offset);
  OnGpu<BFloat16> gpu_weighted(shape, offset);
  gpu_a.fill(a);
  gpu_b.fill(b);
  matrix_products(context, gpu_a.view(), gpu_b.view(), gpu_dots.view(), gpu_weighted.view());
  context.synchronize();
  EXPECT_EQ(gpu_dots.fetched(), dots);
  EXPECT_EQ(gpu_weighted.fetched(), weighted);
}

TEST(TensorCores, MultiplyMatricesAsPlainLoopsDo) {
  if (device::cuda_device_count() == 0) {
    GTEST_SKIP() << "no GPU";
  }
  for (const std::int64_t columns : {64, 128, 256}) {
    for (const std::int64_t offset : {0, 1}) {
      SCOPED_TRACE(std::to_string(columns) + " columns, " + std::to_string(offset) +
                   " elements from an aligned address");
      hold(columns, offset);
    }
  }
}

}  // namespace
}  // namespace strata::ops::test
