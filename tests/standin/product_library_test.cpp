#include <array>
#include <vector>

#include <cublasLt.h>
#include <gtest/gtest.h>

#include "strata/device/buffer.hpp"
#include "strata/device/shared_library.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/matmul.hpp"

// What cuBLASLt does behind a product, as the stand-in for it counts.
namespace strata::ops {
namespace {

using device::Buffer;
using device::Device;

enum class Form { kPlain, kBias, kGelu, kBiasGelu, kGeluGradient };

class CublasLtProducts : public testing::Test {
 protected:
  struct Extents {
    std::int64_t m = 8;
    std::int64_t n = 16;
    std::int64_t k = 4;
  };

  /// The epilogue that the library was given with a product; it is given one product.
  cublasLtEpilogue_t epilogue_of(Form form, DType dtype, DType result, const Extents& e) {
    constexpr std::int64_t kMostBytes = 8192;
    const Buffer memory(context_.device(), 5 * kMostBytes);
    const auto tensor = [&](std::int64_t i, const Shape& shape, DType of) {
      return memory.view(i * kMostBytes, shape, of);
    };
    MatmulOptions options;
    const TensorView like_c = tensor(3, {e.m, e.n}, result);
    if (form == Form::kBias || form == Form::kBiasGelu) {
      options.bias = tensor(2, {e.n}, dtype);
    }
    if (form == Form::kGelu || form == Form::kBiasGelu) {
      options.activation = Activation::kGelu;
      options.pre_activation = like_c;
    }
    if (form == Form::kGeluGradient) {
      options.gelu_gradient_of = like_c;
    }
    std::vector<int> before;
    for (const cublasLtEpilogue_t epilogue : kEpilogues) {
      before.push_back(count_(epilogue));
    }
    matmul(context_, tensor(0, {e.m, e.k}, dtype), tensor(1, {e.k, e.n}, dtype),
           tensor(4, {e.m, e.n}, result), options);
    context_.synchronize();
    int products = 0;
    auto found = CUBLASLT_EPILOGUE_RELU;
    for (std::size_t i = 0; i < kEpilogues.size(); ++i) {
      const int more = count_(kEpilogues[i]) - before[i];
      found = more > 0 ? kEpilogues[i] : found;
      products += more;
    }
    EXPECT_EQ(products, 1);
    return found;
  }

  cublasLtEpilogue_t epilogue_of(Form form, DType dtype, const Extents& extents) {
    return epilogue_of(form, dtype, dtype, extents);
  }

  static constexpr std::array kEpilogues{CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                         CUBLASLT_EPILOGUE_GELU_AUX,
                                         CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
  Context context_ = Context::cuda(Device::cuda(0));
  const device::SharedLibrary library_{STRATA_STANDIN_CUBLAS_LT};
  int (*const count_)(cublasLtEpilogue_t) =
      library_.function<int (*)(cublasLtEpilogue_t)>("standin_cublas_lt_products");
  int (*const choices_)() = library_.function<int (*)()>("standin_cublas_lt_choices");
};

TEST_F(CublasLtProducts, TakesBiasesAndGelu) {
  ASSERT_NE(count_, nullptr);
  constexpr DType kType = DType::kBfloat16;
  EXPECT_EQ(epilogue_of(Form::kPlain, kType, {}), CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(epilogue_of(Form::kBias, kType, {}), CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(epilogue_of(Form::kGelu, kType, {}), CUBLASLT_EPILOGUE_GELU_AUX);
  EXPECT_EQ(epilogue_of(Form::kBiasGelu, kType, {}), CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  EXPECT_EQ(epilogue_of(Form::kGeluGradient, kType, {}), CUBLASLT_EPILOGUE_DGELU);
}

TEST_F(CublasLtProducts, LeavesGeluToOwnKernelsOutsideBfloat16) {
  ASSERT_NE(count_, nullptr);
  EXPECT_EQ(epilogue_of(Form::kBiasGelu, DType::kFloat32, {}), CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(epilogue_of(Form::kGeluGradient, DType::kFloat32, {}), CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(epilogue_of(Form::kBiasGelu, DType::kFloat64, {}), CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(epilogue_of(Form::kBiasGelu, DType::kBfloat16, DType::kFloat32, {}),
            CUBLASLT_EPILOGUE_DEFAULT);
}

TEST_F(CublasLtProducts, LeavesGeluToOwnKernelsBesideRowsThatTheLibraryDoesNotTake) {
  ASSERT_NE(count_, nullptr);
  constexpr DType kType = DType::kBfloat16;
  EXPECT_EQ(epilogue_of(Form::kBiasGelu, kType, {.n = 12}), CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(epilogue_of(Form::kGeluGradient, kType, {.n = 12}), CUBLASLT_EPILOGUE_DEFAULT);
}

TEST_F(CublasLtProducts, DoesWithoutAnEpilogueThatItHasNoKernelWith) {
  ASSERT_NE(count_, nullptr);
  ASSERT_NE(choices_, nullptr);
  constexpr DType kType = DType::kBfloat16;
  EXPECT_EQ(epilogue_of(Form::kBias, kType, {.k = 5}), CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(epilogue_of(Form::kGeluGradient, kType, {.k = 5}), CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(epilogue_of(Form::kBiasGelu, kType, {.k = 5}), CUBLASLT_EPILOGUE_DEFAULT);
  // What is known is not asked for again.
  const int choices = choices_();
  EXPECT_EQ(epilogue_of(Form::kBiasGelu, kType, {.k = 5}), CUBLASLT_EPILOGUE_DEFAULT);
  EXPECT_EQ(choices_(), choices);
}

}  // namespace
}  // namespace strata::ops
