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

// Included only where cuDNN's header was found.
namespace strata::ops::cuda {

enum class ConvolutionPass { kForward, kBackwardInput, kBackwardWeight };

/// What is known of the values of a convolution's float32 tensors.
enum class ConvolutionValues {
  kOwn,        ///< any of the dtype
  kOfBfloat16  ///< of bfloat16, which tf32 keeps whole, so that tensor cores may multiply them
};

/// A convolution's shape and options; they alone determine cuDNN's algorithm and so the bits of the
/// result.
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

/// Addresses of a convolution's tensors, aligned to kLibraryAlignmentBytes: a pass reads two and
/// writes the third.
/// Shapes: x shape.input(), y shape.output(), w [out_channels, height.window, width.window,
/// in_channels / groups].
struct ConvolutionAddresses {
  std::byte* x = nullptr;
  std::byte* w = nullptr;
  std::byte* y = nullptr;
  /// Memory of workspace_bytes().
  std::byte* workspace = nullptr;
};

/// Cache of cuDNN's convolution plans. The algorithms are fixed and deterministic, never chosen by
/// timing. The library outlives it. Source: cuDNN's reference, cudnnConvolutionForward,
/// ...BackwardData and ...BackwardFilter.
class CudnnConvolutionPlans {
 public:
  /// Notes in `kernels` what runs each shape; it outlives this.
  /// Throws: Error(kPeer) where the library was found but lacks a function.
  CudnnConvolutionPlans(const CudnnLibrary& cudnn, KernelsUsed& kernels)
      : cudnn_(cudnn), kernels_(kernels) {}
  CudnnConvolutionPlans(const CudnnConvolutionPlans&) = delete;
  CudnnConvolutionPlans& operator=(const CudnnConvolutionPlans&) = delete;

  /// Workspace of a convolution; nothing where the library is missing or does not support it.
  /// Throws: Error(kPeer) where the library fails.
  [[nodiscard]] std::optional<std::int64_t> workspace_bytes(const CudnnConvolution& convolution);
  /// Enqueues a convolution that has workspace_bytes(). False, with nothing enqueued, where the
  /// library refuses it after all; workspace_bytes() is then empty from here on.
  /// Throws: Error(kPeer) where the library fails.
  [[nodiscard]] bool run(const CudnnConvolution& convolution, const ConvolutionAddresses& at);

 private:
  /// The library's entry points.
  struct Functions {
    const CudnnLibrary& cudnn;

    decltype(&cudnnCreateTensorDescriptor) tensor_create =
        cudnn.find("cudnnCreateTensorDescriptor");
    decltype(&cudnnDestroyTensorDescriptor) tensor_destroy =
        cudnn.find("cudnnDestroyTensorDescriptor");
    decltype(&cudnnSetTensor4dDescriptor) tensor_set = cudnn.find("cudnnSetTensor4dDescriptor");
    decltype(&cudnnCreateFilterDescriptor) filter_create =
        cudnn.find("cudnnCreateFilterDescriptor");
    decltype(&cudnnDestroyFilterDescriptor) filter_destroy =
        cudnn.find("cudnnDestroyFilterDescriptor");
    decltype(&cudnnSetFilter4dDescriptor) filter_set = cudnn.find("cudnnSetFilter4dDescriptor");
    decltype(&cudnnCreateConvolutionDescriptor) desc_create =
        cudnn.find("cudnnCreateConvolutionDescriptor");
    decltype(&cudnnDestroyConvolutionDescriptor) desc_destroy =
        cudnn.find("cudnnDestroyConvolutionDescriptor");
    decltype(&cudnnSetConvolution2dDescriptor) desc_set =
        cudnn.find("cudnnSetConvolution2dDescriptor");
    decltype(&cudnnSetConvolutionGroupCount) desc_set_groups =
        cudnn.find("cudnnSetConvolutionGroupCount");
    decltype(&cudnnSetConvolutionMathType) desc_set_math =
        cudnn.find("cudnnSetConvolutionMathType");
    decltype(&cudnnGetConvolutionForwardWorkspaceSize) forward_bytes =
        cudnn.find("cudnnGetConvolutionForwardWorkspaceSize");
    decltype(&cudnnGetConvolutionBackwardDataWorkspaceSize) input_bytes =
        cudnn.find("cudnnGetConvolutionBackwardDataWorkspaceSize");
    decltype(&cudnnGetConvolutionBackwardFilterWorkspaceSize) weight_bytes =
        cudnn.find("cudnnGetConvolutionBackwardFilterWorkspaceSize");
    decltype(&cudnnConvolutionForward) forward = cudnn.find("cudnnConvolutionForward");
    decltype(&cudnnConvolutionBackwardData) input = cudnn.find("cudnnConvolutionBackwardData");
    decltype(&cudnnConvolutionBackwardFilter) weight = cudnn.find("cudnnConvolutionBackwardFilter");
  };
  /// An owning handle of a library descriptor.
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
  KernelsUsed& kernels_;
  Functions functions_{cudnn_};
  /// Empty where the library does not support the key.
  std::map<CudnnConvolution, std::optional<Prepared>> prepared_;
};

}  // namespace strata::ops::cuda
