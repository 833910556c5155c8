#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>

#include <cudnn.h>

#include "strata/core/dtype.hpp"
#include "strata/ops/context.hpp"
#include "strata/ops/convolution.hpp"

#include "cudnn/library.hpp"

// Included by .cu files alone, where cuDNN's header was found.
namespace strata::ops::cuda {

enum class ConvolutionPass { kForward, kBackwardInput, kBackwardWeight };

/// What the values of a convolution's float32 tensors are.
enum class ConvolutionValues {
  kOwn,        ///< any of the dtype
  kOfBfloat16  ///< of bfloat16, which tf32 keeps whole, so that tensor cores may multiply them
};

/// What follows from a convolution's shape and options; cuDNN's algorithm, and with it the bits of
/// the result, follows from this alone.
struct CudnnConvolution {
  ConvolutionPass pass = ConvolutionPass::kForward;
  ConvolutionShape shape;
  /// Of all tensors.
  DType dtype = DType::kFloat32;
  ConvolutionValues values = ConvolutionValues::kOwn;
  /// Of float32.
  Float32Products precision = Float32Products::kFull;

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const CudnnConvolution&, const CudnnConvolution&) = default;
};

/// Where a convolution's tensors lie, all at multiples of kLibraryAlignmentBytes: two
/// are read, the pass's result is written.
/// Shapes: x shape.input(), y shape.output(), w [out_channels, height.window, width.window,
/// in_channels / groups].
struct ConvolutionAddresses {
  std::byte* x = nullptr;
  std::byte* w = nullptr;
  std::byte* y = nullptr;
  /// Memory of workspace_bytes().
  std::byte* workspace = nullptr;
};

/// The convolutions that cuDNN, which outlives this, was asked for so far. Its algorithms are fixed
/// ones that give the same bits on every run; none is looked for by time. Source: cuDNN's
/// reference, cudnnConvolutionForward, ...BackwardData and ...BackwardFilter.
class CudnnConvolutionPlans {
 public:
  /// Throws: Error(kPeer) where the library was found but lacks a function.
  explicit CudnnConvolutionPlans(const CudnnLibrary& cudnn);
  CudnnConvolutionPlans(const CudnnConvolutionPlans&) = delete;
  CudnnConvolutionPlans& operator=(const CudnnConvolutionPlans&) = delete;

  /// Memory that a convolution works in; none where the library is not found or does not take it.
  /// Throws: Error(kPeer) where the library fails.
  [[nodiscard]] std::optional<std::int64_t> workspace_bytes(const CudnnConvolution& convolution);
  /// Puts a convolution that has workspace_bytes() on the stream. False where the library refuses
  /// it after all: then nothing was put there, and it has no workspace_bytes() from here on.
  /// Throws: Error(kPeer) where the library fails.
  [[nodiscard]] bool run(const CudnnConvolution& convolution, const ConvolutionAddresses& at);

 private:
  /// The library's functions that are called here.
  struct Functions {
    decltype(&cudnnCreateTensorDescriptor) tensor_create = nullptr;
    decltype(&cudnnDestroyTensorDescriptor) tensor_destroy = nullptr;
    decltype(&cudnnSetTensor4dDescriptor) tensor_set = nullptr;
    decltype(&cudnnCreateFilterDescriptor) filter_create = nullptr;
    decltype(&cudnnDestroyFilterDescriptor) filter_destroy = nullptr;
    decltype(&cudnnSetFilter4dDescriptor) filter_set = nullptr;
    decltype(&cudnnCreateConvolutionDescriptor) desc_create = nullptr;
    decltype(&cudnnDestroyConvolutionDescriptor) desc_destroy = nullptr;
    decltype(&cudnnSetConvolution2dDescriptor) desc_set = nullptr;
    decltype(&cudnnSetConvolutionGroupCount) desc_set_groups = nullptr;
    decltype(&cudnnSetConvolutionMathType) desc_set_math = nullptr;
    decltype(&cudnnGetConvolutionForwardWorkspaceSize) forward_bytes = nullptr;
    decltype(&cudnnGetConvolutionBackwardDataWorkspaceSize) input_bytes = nullptr;
    decltype(&cudnnGetConvolutionBackwardFilterWorkspaceSize) weight_bytes = nullptr;
    decltype(&cudnnConvolutionForward) forward = nullptr;
    decltype(&cudnnConvolutionBackwardData) input = nullptr;
    decltype(&cudnnConvolutionBackwardFilter) weight = nullptr;
  };
  /// A descriptor of the library's with the function that destroys it.
  template <typename Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cudnnStatus_t (*)(Handle)>;
  struct Prepared {
    Owned<cudnnTensorDescriptor_t> x;
    Owned<cudnnFilterDescriptor_t> w;
    Owned<cudnnTensorDescriptor_t> y;
    Owned<cudnnConvolutionDescriptor_t> desc;
    std::size_t workspace_bytes = 0;
  };

  template <typename Handle>
  [[nodiscard]] Owned<Handle> made(cudnnStatus_t (*create)(Handle*),
                                   cudnnStatus_t (*destroy)(Handle)) const;
  [[nodiscard]] std::optional<Prepared>& prepared(const CudnnConvolution& convolution);
  [[nodiscard]] std::optional<Prepared> prepare(const CudnnConvolution& convolution) const;
  [[nodiscard]] cudnnStatus_t find_workspace(ConvolutionPass pass, Prepared& parts) const;

  const CudnnLibrary& cudnn_;
  Functions functions_;
  /// Nothing for what the library does not take.
  std::map<CudnnConvolution, std::optional<Prepared>> prepared_;
};

}  // namespace strata::ops::cuda
