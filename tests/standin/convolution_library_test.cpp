#include <cstdint>

#include <gtest/gtest.h>

#include "strata/device/buffer.hpp"
#include "strata/device/shared_library.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/convolution.hpp"

// Which convolutions cuDNN does, as the stand-in for it counts them.
namespace strata::ops {
namespace {

using device::Buffer;
using device::Device;

class CudnnConvolutionPlans : public testing::Test {
 protected:
  /// How many of the three passes of a shape cuDNN does.
  int passes_by_library(Context& context, const ConvolutionShape& shape, DType dtype) {
    constexpr std::int64_t kMostBytes = 8;  // of an element
    const Buffer memory(
        context.device(),
        (shape.input().count() + 2 * shape.weight().count() + shape.output().count()) * kMostBytes);
    std::int64_t used_bytes = 0;
    const auto tensor = [&](const Shape& size, DType of) {
      const TensorView view = memory.view(used_bytes, size, of);
      used_bytes += size.count() * kMostBytes;
      return view;
    };
    const TensorView x = tensor(shape.input(), dtype);
    const TensorView w = tensor(shape.weight(), dtype);
    const TensorView y = tensor(shape.output(), dtype);
    const TensorView dw = tensor(shape.weight(), compute_dtype(dtype));
    const int before = count_();
    convolution_forward(context, shape, x, w, y);
    convolution_backward_input(context, shape, y, w, x);
    convolution_backward_weight(context, shape, x, y, dw, Accumulate::kOverwrite);
    context.synchronize();
    return count_() - before;
  }

  Context context_ = Context::cuda(Device::cuda(0));
  const device::SharedLibrary library_{STRATA_STANDIN_CUDNN};
  int (*const count_)() = library_.function<int (*)()>("standin_cudnn_convolutions");
  void (*const refuse_next_)() = library_.function<void (*)()>("standin_cudnn_refuse_next");
};

constexpr ConvolutionShape kPlain{
    .images = 2,
    .height = {.in = 6, .out = 6, .window = 3, .padding = 1},
    .width = {.in = 5, .out = 3, .window = 3, .stride = 2, .padding = 1},
    .in_channels = 4,
    .out_channels = 6,
    .groups = 2};

TEST_F(CudnnConvolutionPlans, DoesWhatItTakes) {
  ASSERT_NE(count_, nullptr);
  EXPECT_EQ(passes_by_library(context_, kPlain, DType::kFloat32), 3);
  EXPECT_EQ(passes_by_library(context_, kPlain, DType::kBfloat16), 3);
  // A second time from what was kept.
  EXPECT_EQ(passes_by_library(context_, kPlain, DType::kFloat32), 3);
}

TEST_F(CudnnConvolutionPlans, LeavesWhatItRefuses) {
  ASSERT_NE(count_, nullptr);
  EXPECT_EQ(passes_by_library(context_, kPlain, DType::kFloat64), 0);
  EXPECT_EQ(passes_by_library(context_, kPlain, DType::kFloat64), 0);
  ConvolutionShape dilated = kPlain;
  dilated.height = {.in = 6, .out = 6, .window = 3, .dilation = 2, .padding = 2};
  EXPECT_EQ(passes_by_library(context_, dilated, DType::kFloat32), 2) << "all but forward";
  ConvolutionShape behind = kPlain;
  behind.height = {.in = 6, .out = 3, .window = 3, .stride = 2};
  EXPECT_EQ(passes_by_library(context_, behind, DType::kFloat32), 0);
}

TEST_F(CudnnConvolutionPlans, IsNotAskedAgainForWhatItRefusedLate) {
  ASSERT_NE(refuse_next_, nullptr);
  refuse_next_();
  EXPECT_EQ(passes_by_library(context_, kPlain, DType::kFloat32), 2) << "all but forward";
  EXPECT_EQ(passes_by_library(context_, kPlain, DType::kFloat32), 2);
}

TEST_F(CudnnConvolutionPlans, DoesNothingWhereOwnKernelsAreAskedFor) {
  ASSERT_NE(count_, nullptr);
  Context own = Context::cuda(Device::cuda(0), {.convolution_kernels = LibraryKernels::kOwn});
  EXPECT_EQ(passes_by_library(own, kPlain, DType::kFloat32), 0);
}

}  // namespace
}  // namespace strata::ops
