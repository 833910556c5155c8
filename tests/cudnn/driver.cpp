// A driver that pretends to load kernels, and has no GPU: cuDNN wants one to make a plan for a GPU
// that is described to it. What is asked for beside that fails.
namespace {

constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;
constexpr int kVersion = 13000;

int loaded_library = 0;
int loaded_kernel = 0;

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kSuccess ? "success" : "no device";
  return kSuccess;
}

int cuGetErrorString(int error, const char** text) {
  return cuGetErrorName(error, text);
}

int cuLibraryLoadData(void** library) {
  *library = &loaded_library;
  return kSuccess;
}

int cuLibraryUnload(void* library) {
  return library == &loaded_library ? kSuccess : kNoDevice;
}

int cuLibraryGetKernel(void** kernel, void* library) {
  *kernel = library == &loaded_library ? &loaded_kernel : nullptr;
  return *kernel != nullptr ? kSuccess : kNoDevice;
}

int cuKernelGetAttribute(int* value) {
  *value = 0;
  return kSuccess;
}

int cuKernelSetAttribute() {
  return kSuccess;
}

int cuOccupancyMaxPotentialClusterSize(int* size) {
  *size = 1;
  return kSuccess;
}

// Looked for, and of no use without a GPU.
#define NO_DEVICE(name) \
  int name() {          \
    return kNoDevice;   \
  }
NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuCtxGetDevice)
NO_DEVICE(cuCtxGetLimit)
NO_DEVICE(cuCtxPopCurrent)
NO_DEVICE(cuCtxPushCurrent)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuDeviceGetAttribute)
NO_DEVICE(cuDeviceGetCount)
NO_DEVICE(cuDevicePrimaryCtxRelease)
NO_DEVICE(cuDevicePrimaryCtxReset)
NO_DEVICE(cuDevicePrimaryCtxRetain)
NO_DEVICE(cuFuncGetAttribute)
NO_DEVICE(cuFuncSetAttribute)
NO_DEVICE(cuInit)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuLibraryLoadFromFile)
NO_DEVICE(cuLinkAddData)
NO_DEVICE(cuLinkAddData_v2)
NO_DEVICE(cuLinkAddFile_v2)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate)
NO_DEVICE(cuLinkCreate_v2)
NO_DEVICE(cuLinkDestroy)
NO_DEVICE(cuMemcpyDtoH_v2)
NO_DEVICE(cuModuleGetFunction)
NO_DEVICE(cuModuleGetGlobal_v2)
NO_DEVICE(cuModuleLoadData)
NO_DEVICE(cuModuleLoadDataEx)
NO_DEVICE(cuModuleLoadFatBinary)
NO_DEVICE(cuModuleUnload)
NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NO_DEVICE(cuStreamGetCtx)
NO_DEVICE(cuStreamSynchronize)
NO_DEVICE(cuTensorMapEncodeTiled)
#undef NO_DEVICE

}  // extern "C"
