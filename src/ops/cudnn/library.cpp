#ifdef STRATA_HAVE_CUDNN

#include "cudnn/library.hpp"

#include "strata/device/failure.hpp"

#include "cuda/resources.hpp"
#include "cuda/stream.hpp"

namespace strata::ops::cuda {

CudnnLibrary::CudnnLibrary() : library_("libcudnn.so." + std::to_string(CUDNN_MAJOR)) {
  if (loaded()) {
    static_cast<void>(device::nvrtc_library(CUDART_VERSION / 1000));
  }
}

CudnnLibrary::CudnnLibrary(cudaStream_t stream) : CudnnLibrary() {
  if (!loaded()) {
    return;
  }
  const decltype(&cudnnCreate) create = find("cudnnCreate");
  const decltype(&cudnnSetStream) set_stream = find("cudnnSetStream");
  check(create(&handle_), "starting cuDNN");
  check(set_stream(handle_, stream), "giving cuDNN a stream");
}

CudnnLibrary::~CudnnLibrary() {
  if (handle_ != nullptr) {
    static_cast<void>(destroy_handle_(handle_));
  }
}

std::int64_t CudnnLibrary::version() const {
  return static_cast<std::int64_t>(version_());
}

void CudnnLibrary::check(cudnnStatus_t status, const std::string& what) const {
  if (status != CUDNN_STATUS_SUCCESS) {
    device::cuda_failed(what.c_str(), error_string_(status));
  }
}

bool CudnnLibrary::takes(cudnnStatus_t status, const std::string& what) const {
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) {
    return false;
  }
  check(status, what);
  return true;
}

const CudnnLibrary& cudnn_of(Context& context) {
  auto& library = context.cuda_resources().cudnn_library();
  if (library == nullptr) {
    library = {new CudnnLibrary(stream_of(context)), [](CudnnLibrary* made) { delete made; }};
  }
  return *library;
}

}  // namespace strata::ops::cuda

#endif
