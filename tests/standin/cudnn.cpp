#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <cudnn.h>

#include "convolution.hpp"
#include "cudnn_library.hpp"
#include "library_work.hpp"

// A stand-in for cuDNN: the calls that strata makes. It refuses what cuDNN's reference does not
// have in its tables, and arguments that go against strata's promises.

namespace {

using standin::Convolution;
using standin::Description;
using standin::Filter;
using standin::Images;
using standin::Library;
using standin::ours;
using standin::Pass;

template <typename Handle, typename Ours>
Handle handle_of(Ours* ours) {
  return reinterpret_cast<Handle>(ours);
}
Images& ours(cudnnTensorDescriptor_t handle) {
  return *reinterpret_cast<Images*>(handle);
}
Filter& ours(cudnnFilterDescriptor_t handle) {
  return *reinterpret_cast<Filter*>(handle);
}
Description& ours(cudnnConvolutionDescriptor_t handle) {
  return *reinterpret_cast<Description*>(handle);
}

cudnnStatus_t set(Images& to, const Images& from) {
  if (from.images < 1 || from.channels < 1 || from.rows < 1 || from.columns < 1) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  to = from;
  return CUDNN_STATUS_SUCCESS;
}

/// What strata promises for every address.
bool is_aligned(const void* address) {
  constexpr std::uintptr_t kAlignmentBytes = 16;
  return address != nullptr && reinterpret_cast<std::uintptr_t>(address) % kAlignmentBytes == 0;
}

int put_so_far = 0;
bool refuses_next = false;

cudnnStatus_t query(const Convolution& convolution, std::size_t* bytes) {
  const cudnnStatus_t status = convolution.status();
  if (status == CUDNN_STATUS_SUCCESS) {
    *bytes = convolution.workspace_bytes();
  }
  return status;
}

cudnnStatus_t put(cudnnHandle_t handle, const Convolution& convolution, std::size_t bytes,
                  const void* alpha, const void* beta) {
  const cudnnStatus_t status = convolution.status();
  if (status != CUDNN_STATUS_SUCCESS) {
    return status;
  }
  // strata overwrites results, in memory that holds anything.
  if (ours(handle).stream == nullptr || bytes != convolution.workspace_bytes() ||
      *static_cast<const float*>(alpha) != 1.0F || *static_cast<const float*>(beta) != 0.0F) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  if (!is_aligned(convolution.x_at) || !is_aligned(convolution.w_at) ||
      !is_aligned(convolution.y_at) || !is_aligned(convolution.workspace)) {
    return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
  }
  if (std::exchange(refuses_next, false)) {
    return CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT;
  }
  if (!standin::put_library_work(ours(handle).stream, [convolution] { convolution.run(); })) {
    return CUDNN_STATUS_EXECUTION_FAILED;
  }
  ++put_so_far;
  return CUDNN_STATUS_SUCCESS;
}

/// The address of what is read, in a struct that may hold what is written.
void* mutable_of(const void* address) {
  return const_cast<void*>(address);
}

}  // namespace

extern "C" {

// Of the stand-in alone.
/// Convolutions that were put on streams.
int standin_cudnn_convolutions() {
  return put_so_far;
}
/// The next one is not supported, though its workspace could be asked for.
void standin_cudnn_refuse_next() {
  refuses_next = true;
}

std::size_t cudnnGetVersion() {
  return CUDNN_VERSION;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "the combination is not supported";
    case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER:
      return "a pointer is not aligned";
    default:
      return "a bad parameter was passed";
  }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = handle_of<cudnnHandle_t>(new Library());
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete &ours(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId) {
  ours(handle).stream = streamId;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensorDesc) {
  *tensorDesc = handle_of<cudnnTensorDescriptor_t>(new Images());
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensorDesc) {
  delete &ours(tensorDesc);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensorDesc,
                                         cudnnTensorFormat_t format, cudnnDataType_t dataType,
                                         int n, int c, int h, int w) {
  constexpr std::int64_t kEndOfElements = std::int64_t{1} << 31;
  const Images images{true, dataType, format, n, c, h, w};
  return images.count() >= kEndOfElements ? CUDNN_STATUS_NOT_SUPPORTED
                                          : set(ours(tensorDesc), images);
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filterDesc) {
  *filterDesc = handle_of<cudnnFilterDescriptor_t>(new Filter());
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filterDesc) {
  delete &ours(filterDesc);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filterDesc,
                                         cudnnDataType_t dataType, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w) {
  return set(ours(filterDesc), {true, dataType, format, k, c, h, w});
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convDesc) {
  *convDesc = handle_of<cudnnConvolutionDescriptor_t>(new Description());
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convDesc) {
  delete &ours(convDesc);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convDesc, int pad_h,
                                              int pad_w, int u, int v, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t computeType) {
  if (pad_h < 0 || pad_w < 0 || u < 1 || v < 1 || dilation_h < 1 || dilation_w < 1 ||
      mode != CUDNN_CROSS_CORRELATION) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  ours(convDesc) = {true, {pad_h, u, dilation_h}, {pad_w, v, dilation_w}, computeType};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convDesc, int groupCount) {
  ours(convDesc).groups = groupCount;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convDesc,
                                          cudnnMathType_t mathType) {
  ours(convDesc).math = mathType;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t /*handle*/, cudnnTensorDescriptor_t xDesc, cudnnFilterDescriptor_t wDesc,
    cudnnConvolutionDescriptor_t convDesc, cudnnTensorDescriptor_t yDesc,
    cudnnConvolutionFwdAlgo_t algo, std::size_t* sizeInBytes) {
  return algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
             ? CUDNN_STATUS_BAD_PARAM
             : query({Pass::kForward, ours(xDesc), ours(wDesc), ours(yDesc), ours(convDesc)},
                     sizeInBytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t /*handle*/, cudnnFilterDescriptor_t wDesc, cudnnTensorDescriptor_t dyDesc,
    cudnnConvolutionDescriptor_t convDesc, cudnnTensorDescriptor_t dxDesc,
    cudnnConvolutionBwdDataAlgo_t algo, std::size_t* sizeInBytes) {
  return algo != CUDNN_CONVOLUTION_BWD_DATA_ALGO_1
             ? CUDNN_STATUS_BAD_PARAM
             : query({Pass::kInput, ours(dxDesc), ours(wDesc), ours(dyDesc), ours(convDesc)},
                     sizeInBytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t /*handle*/, cudnnTensorDescriptor_t xDesc, cudnnTensorDescriptor_t dyDesc,
    cudnnConvolutionDescriptor_t convDesc, cudnnFilterDescriptor_t gradDesc,
    cudnnConvolutionBwdFilterAlgo_t algo, std::size_t* sizeInBytes) {
  return algo != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1
             ? CUDNN_STATUS_BAD_PARAM
             : query({Pass::kWeight, ours(xDesc), ours(gradDesc), ours(dyDesc), ours(convDesc)},
                     sizeInBytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      cudnnTensorDescriptor_t xDesc, const void* x,
                                      cudnnFilterDescriptor_t wDesc, const void* w,
                                      cudnnConvolutionDescriptor_t convDesc,
                                      cudnnConvolutionFwdAlgo_t algo, void* workSpace,
                                      std::size_t workSpaceSizeInBytes, const void* beta,
                                      cudnnTensorDescriptor_t yDesc, void* y) {
  return algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
             ? CUDNN_STATUS_BAD_PARAM
             : put(handle,
                   {Pass::kForward, ours(xDesc), ours(wDesc), ours(yDesc), ours(convDesc),
                    mutable_of(x), mutable_of(w), y, workSpace},
                   workSpaceSizeInBytes, alpha, beta);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           cudnnFilterDescriptor_t wDesc, const void* w,
                                           cudnnTensorDescriptor_t dyDesc, const void* dy,
                                           cudnnConvolutionDescriptor_t convDesc,
                                           cudnnConvolutionBwdDataAlgo_t algo, void* workSpace,
                                           std::size_t workSpaceSizeInBytes, const void* beta,
                                           cudnnTensorDescriptor_t dxDesc, void* dx) {
  return algo != CUDNN_CONVOLUTION_BWD_DATA_ALGO_1
             ? CUDNN_STATUS_BAD_PARAM
             : put(handle,
                   {Pass::kInput, ours(dxDesc), ours(wDesc), ours(dyDesc), ours(convDesc), dx,
                    mutable_of(w), mutable_of(dy), workSpace},
                   workSpaceSizeInBytes, alpha, beta);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             cudnnTensorDescriptor_t xDesc, const void* x,
                                             cudnnTensorDescriptor_t dyDesc, const void* dy,
                                             cudnnConvolutionDescriptor_t convDesc,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void* workSpace,
                                             std::size_t workSpaceSizeInBytes, const void* beta,
                                             cudnnFilterDescriptor_t dwDesc, void* dw) {
  return algo != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1
             ? CUDNN_STATUS_BAD_PARAM
             : put(handle,
                   {Pass::kWeight, ours(xDesc), ours(dwDesc), ours(dyDesc), ours(convDesc),
                    mutable_of(x), dw, mutable_of(dy), workSpace},
                   workSpaceSizeInBytes, alpha, beta);
}

}  // extern "C"
