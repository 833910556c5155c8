#ifdef STRATA_HAVE_CUDNN

#include "convolution/cudnn_convolution_plans.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"

namespace strata::ops::cuda {
namespace {

// cuDNN's deterministic algorithms for channels-last images.
constexpr cudnnConvolutionFwdAlgo_t kForwardAlgorithm =
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
constexpr cudnnConvolutionBwdDataAlgo_t kInputAlgorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
constexpr cudnnConvolutionBwdFilterAlgo_t kWeightAlgorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

cudnnDataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDNN_DATA_FLOAT;
    case DType::kFloat64:
      return CUDNN_DATA_DOUBLE;
    case DType::kBfloat16:
      return CUDNN_DATA_BFLOAT16;
    default:
      refuse_dtype(dtype);
  }
}

/// The units that multiply.
cudnnMathType_t library_math(const CudnnConvolution& convolution) {
  if (convolution.dtype == DType::kBfloat16) {
    return CUDNN_TENSOR_OP_MATH;
  }
  // By default tensor cores may round float32 to TF32, which keeps 11 bits.
  return convolution.values == ConvolutionValues::kOfBfloat16 ||
                 convolution.precision == Float32Products::kTf32
             ? CUDNN_DEFAULT_MATH
             : CUDNN_FMA_MATH;
}

/// Whether cuDNN, which pads both ends equally, has the same number of windows.
bool is_padded_alike(const WindowAxis& axis) {
  const std::int64_t room = axis.in + 2 * axis.padding - axis.reach();
  return axis.padding >= 0 && room >= 0 && room / axis.stride + 1 == axis.out;
}

bool is_int(std::int64_t value) {
  return value <= std::numeric_limits<int>::max();
}

bool has_ints(const WindowAxis& axis) {
  const std::array values{axis.in, axis.out, axis.window, axis.stride, axis.dilation, axis.padding};
  return std::all_of(values.begin(), values.end(), is_int);
}

/// Whether cuDNN's descriptors can express the shape.
bool can_be_described(const ConvolutionShape& shape) {
  return is_padded_alike(shape.height) && is_padded_alike(shape.width) && has_ints(shape.height) &&
         has_ints(shape.width) && is_int(shape.images) && is_int(shape.in_channels) &&
         is_int(shape.out_channels);
}

/// The name in errors.
std::string text_of(const CudnnConvolution& convolution) {
  constexpr std::array kPasses{"forward", "input gradient", "weight gradient"};
  const ConvolutionShape& shape = convolution.shape;
  return fmt::format(
      "a convolution's {} of {} images of {} x {} x {} in {}, {} windows of {} x {} in {} groups",
      kPasses[static_cast<std::size_t>(convolution.pass)], shape.images, shape.height.in,
      shape.width.in, shape.in_channels, name_of(convolution.dtype), shape.out_channels,
      shape.height.window, shape.width.window, shape.groups);
}

}  // namespace

template <typename Handle>
CudnnConvolutionPlans::Owned<Handle> CudnnConvolutionPlans::made(
    cudnnStatus_t (*create)(Handle*), cudnnStatus_t (*destroy)(Handle)) const {
  Handle raw = nullptr;
  cudnn_.check(create(&raw), "describing a convolution");
  return {raw, destroy};
}

std::optional<CudnnConvolutionPlans::Prepared> CudnnConvolutionPlans::prepare(
    const CudnnConvolution& convolution) const {
  const ConvolutionShape& shape = convolution.shape;
  if (!cudnn_.loaded() || !can_be_described(shape)) {
    return std::nullopt;
  }
  const std::string what = "describing " + text_of(convolution);
  Prepared parts{made(functions_.tensor_create, functions_.tensor_destroy),
                 made(functions_.filter_create, functions_.filter_destroy),
                 made(functions_.tensor_create, functions_.tensor_destroy),
                 made(functions_.desc_create, functions_.desc_destroy)};
  const cudnnDataType_t type = cudnn_type(convolution.dtype);
  const auto as_int = [](std::int64_t value) { return static_cast<int>(value); };
  // cuDNN takes sizes in the order NCHW whatever the layout.
  const auto set_images = [&](cudnnTensorDescriptor_t tensor, std::int64_t channels,
                              std::int64_t rows, std::int64_t columns) {
    return cudnn_.takes(functions_.tensor_set(tensor, CUDNN_TENSOR_NHWC, type, as_int(shape.images),
                                              as_int(channels), as_int(rows), as_int(columns)),
                        what);
  };
  const bool are_taken =
      set_images(parts.x.get(), shape.in_channels, shape.height.in, shape.width.in) &&
      set_images(parts.y.get(), shape.out_channels, shape.height.out, shape.width.out) &&
      cudnn_.takes(
          functions_.filter_set(parts.w.get(), type, CUDNN_TENSOR_NHWC, as_int(shape.out_channels),
                                as_int(shape.in_channels / shape.groups),
                                as_int(shape.height.window), as_int(shape.width.window)),
          what);
  if (!are_taken) {
    return std::nullopt;
  }
  cudnn_.check(functions_.desc_set(parts.desc.get(), as_int(shape.height.padding),
                                   as_int(shape.width.padding), as_int(shape.height.stride),
                                   as_int(shape.width.stride), as_int(shape.height.dilation),
                                   as_int(shape.width.dilation), CUDNN_CROSS_CORRELATION,
                                   cudnn_type(compute_dtype(convolution.dtype))),
               what);
  cudnn_.check(functions_.desc_set_groups(parts.desc.get(), as_int(shape.groups)), what);
  cudnn_.check(functions_.desc_set_math(parts.desc.get(), library_math(convolution)), what);
  if (!cudnn_.takes(find_workspace(convolution.pass, parts), what)) {
    return std::nullopt;
  }
  return parts;
}

cudnnStatus_t CudnnConvolutionPlans::find_workspace(ConvolutionPass pass, Prepared& parts) const {
  std::size_t* const bytes = &parts.workspace_bytes;
  switch (pass) {
    case ConvolutionPass::kForward:
      return functions_.forward_bytes(cudnn_.handle(), parts.x.get(), parts.w.get(),
                                      parts.desc.get(), parts.y.get(), kForwardAlgorithm, bytes);
    case ConvolutionPass::kBackwardInput:
      return functions_.input_bytes(cudnn_.handle(), parts.w.get(), parts.y.get(), parts.desc.get(),
                                    parts.x.get(), kInputAlgorithm, bytes);
    case ConvolutionPass::kBackwardWeight:
      break;
  }
  return functions_.weight_bytes(cudnn_.handle(), parts.x.get(), parts.y.get(), parts.desc.get(),
                                 parts.w.get(), kWeightAlgorithm, bytes);
}

std::optional<CudnnConvolutionPlans::Prepared>& CudnnConvolutionPlans::prepared(
    const CudnnConvolution& convolution) {
  const auto found = prepared_.find(convolution);
  if (found != prepared_.end()) {
    return found->second;
  }
  std::optional<Prepared>& made =
      prepared_.emplace(convolution, prepare(convolution)).first->second;
  kernels_[text_of(convolution)] = made              ? std::string("cuDNN's fixed algorithm")
                                   : cudnn_.loaded() ? std::string(kUnsupported)
                                                     : std::string(kCudnnNotFound);
  return made;
}

std::optional<std::int64_t> CudnnConvolutionPlans::workspace_bytes(
    const CudnnConvolution& convolution) {
  const std::optional<Prepared>& parts = prepared(convolution);
  return parts ? std::optional(static_cast<std::int64_t>(parts->workspace_bytes)) : std::nullopt;
}

bool CudnnConvolutionPlans::run(const CudnnConvolution& convolution,
                                const ConvolutionAddresses& at) {
  std::optional<Prepared>& kept = prepared(convolution);
  require(kept.has_value(), "cuDNN does not support {}", text_of(convolution));
  const Prepared& parts = *kept;
  // Beta 0: the result is not read, so it may be uninitialised.
  const std::array floats{1.0F, 0.0F};
  const std::array doubles{1.0, 0.0};
  const bool is_double = convolution.dtype == DType::kFloat64;
  const void* const one = is_double ? static_cast<const void*>(&doubles[0]) : &floats[0];
  const void* const zero = is_double ? static_cast<const void*>(&doubles[1]) : &floats[1];
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  switch (convolution.pass) {
    case ConvolutionPass::kForward:
      status = functions_.forward(cudnn_.handle(), one, parts.x.get(), at.x, parts.w.get(), at.w,
                                  parts.desc.get(), kForwardAlgorithm, at.workspace,
                                  parts.workspace_bytes, zero, parts.y.get(), at.y);
      break;
    case ConvolutionPass::kBackwardInput:
      status = functions_.input(cudnn_.handle(), one, parts.w.get(), at.w, parts.y.get(), at.y,
                                parts.desc.get(), kInputAlgorithm, at.workspace,
                                parts.workspace_bytes, zero, parts.x.get(), at.x);
      break;
    case ConvolutionPass::kBackwardWeight:
      status = functions_.weight(cudnn_.handle(), one, parts.x.get(), at.x, parts.y.get(), at.y,
                                 parts.desc.get(), kWeightAlgorithm, at.workspace,
                                 parts.workspace_bytes, zero, parts.w.get(), at.w);
      break;
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    return true;
  }
  static_cast<void>(cudnn_.takes(status, text_of(convolution)));
  kernels_[text_of(convolution)] = kUnsupported;
  kept.reset();
  return false;
}

}  // namespace strata::ops::cuda

#endif
