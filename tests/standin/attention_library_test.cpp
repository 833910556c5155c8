#include <cstdint>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/device/buffer.hpp"
#include "strata/device/shared_library.hpp"
#include "strata/ops/attention.hpp"
#include "strata/ops/context.hpp"

#include "error_of.hpp"

// Which attention cuDNN does, as the stand-in for it counts its graphs.
namespace strata::ops {
namespace {

using device::Buffer;
using device::Device;

class CudnnAttentionPlans : public testing::Test {
 protected:
  /// Graphs that cuDNN runs for a forward and a backward pass.
  struct Graphs {
    int forward = 0;
    int backward = 0;

    friend bool operator==(const Graphs&, const Graphs&) = default;
  };

  Graphs graphs_of(Context& context, const AttentionShape& shape, DType dtype = DType::kBfloat16) {
    const Shape wide{shape.rows(), shape.qkv_width()};
    const Shape narrow{shape.rows(), shape.width()};
    const Shape sums{shape.sequences, shape.heads(), shape.tokens};
    constexpr std::int64_t kMostBytes = 8;  // of an element
    const Buffer memory(context.device(),
                        (2 * wide.count() + 2 * narrow.count() + sums.count()) * kMostBytes);
    std::int64_t used_bytes = 0;
    const auto tensor = [&](const Shape& size, DType of) {
      const TensorView view = memory.view(used_bytes, size, of);
      used_bytes += size.count() * kMostBytes;
      return view;
    };
    const TensorView qkv = tensor(wide, dtype);
    const TensorView dqkv = tensor(wide, dtype);
    const TensorView y = tensor(narrow, dtype);
    const TensorView dy = tensor(narrow, dtype);
    const TensorView log_sums = tensor(sums, compute_dtype(dtype));
    const int before = count_();
    causal_attention_forward(context, shape, qkv, y, log_sums);
    const int between = count_();
    causal_attention_backward(context, shape, qkv, y, log_sums, dy, dqkv);
    context.synchronize();
    return {between - before, count_() - between};
  }

  void SetUp() override { ASSERT_NE(count_, nullptr); }

  Context context_ = Context::cuda(Device::cuda(0));
  const device::SharedLibrary library_{STRATA_STANDIN_CUDNN};
  int (*const count_)() = library_.function<int (*)()>("standin_cudnn_graphs");
  void (*const refuse_next_)() = library_.function<void (*)()>("standin_cudnn_refuse_next_graph");
  void (*const keep_no_weights_)(bool) =
      library_.function<void (*)(bool)>("standin_cudnn_keep_no_weights");
};

constexpr AttentionShape kPlain{.sequences = 2, .tokens = 40, .kv_heads = 3, .head_size = 8};
constexpr AttentionShape kGrouped{
    .sequences = 2, .tokens = 80, .kv_heads = 3, .queries = 2, .head_size = 16};

TEST_F(CudnnAttentionPlans, DoesWhatItTakes) {
  EXPECT_EQ(graphs_of(context_, kPlain), (Graphs{1, 1}));
  EXPECT_EQ(graphs_of(context_, kGrouped), (Graphs{2, 2})) << "one a sequence";
  // A second time from what was kept.
  EXPECT_EQ(graphs_of(context_, kPlain), (Graphs{1, 1}));
}

TEST_F(CudnnAttentionPlans, LeavesWhatItDoesNotTake) {
  AttentionShape odd = kPlain;
  odd.head_size = 4;
  EXPECT_EQ(graphs_of(context_, odd), Graphs());
  AttentionShape capped = kPlain;
  capped.softcap = 50.0;
  EXPECT_EQ(graphs_of(context_, capped), Graphs());
  EXPECT_EQ(graphs_of(context_, kPlain, DType::kFloat32), Graphs());
  EXPECT_EQ(graphs_of(context_, kPlain, DType::kFloat64), Graphs());
}

TEST_F(CudnnAttentionPlans, LeavesBackwardPassesWhoseWorkspaceTellsNothing) {
  AttentionShape few = kPlain;
  few.tokens = 39;
  EXPECT_EQ(graphs_of(context_, few), (Graphs{1, 0}));
}

TEST_F(CudnnAttentionPlans, IsNotAskedAgainForWhatItRefusedLate) {
  refuse_next_();
  EXPECT_EQ(graphs_of(context_, kPlain), (Graphs{0, 1}));
  EXPECT_EQ(graphs_of(context_, kPlain), (Graphs{0, 1}));
}

TEST_F(CudnnAttentionPlans, RefusesToGoOnWhereMemoryRanOut) {
  setenv("STRATA_STANDIN_CUDNN_OUT_OF_MEMORY", "0", 1);
  EXPECT_THAT(test::error_of([&] { graphs_of(context_, kPlain); }, ExitCode::kPeer),
              testing::HasSubstr("attention's forward pass over 2 x 40 tokens, 3 heads of 8"));
  unsetenv("STRATA_STANDIN_CUDNN_OUT_OF_MEMORY");
}

TEST_F(CudnnAttentionPlans, DoesNothingBackwardThatAddsInAnyOrder) {
  keep_no_weights_(true);
  EXPECT_EQ(graphs_of(context_, kPlain), (Graphs{1, 0}));
  keep_no_weights_(false);
  EXPECT_EQ(graphs_of(context_, kPlain), (Graphs{1, 0})) << "asked for again";
}

TEST_F(CudnnAttentionPlans, DoesNothingWhereOwnKernelsAreAskedFor) {
  Context own = Context::cuda(Device::cuda(0), {.attention_kernels = LibraryKernels::kOwn});
  EXPECT_EQ(graphs_of(own, kPlain), Graphs());
}

}  // namespace
}  // namespace strata::ops
