#include <cstdio>
#include <cstring>

#include <cuda_runtime_api.h>

#include "blocks.hpp"
#include "machine.hpp"

// The CUDA runtime's functions about devices, versions and errors, as far as strata calls them.

using standin::call;
using standin::host_thread;
using standin::Machine;

namespace {

constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;

bool exists(const Machine& machine, int device) {
  return device >= 0 && device < machine.devices;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  return call([&](Machine& machine) {
    *count = machine.devices;
    return machine.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  *device = host_thread().device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return call([&](Machine& machine) {
    if (!exists(machine, device)) {
      return cudaErrorInvalidDevice;
    }
    host_thread().device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return call([&](Machine& machine) {
    if (!exists(machine, device)) {
      return cudaErrorInvalidDevice;
    }
    *prop = {};
    std::snprintf(prop->name, sizeof(prop->name), "stand-in, no GPU");
    prop->uuid.bytes[0] = static_cast<char>(device);
    prop->totalGlobalMem = machine.device_bytes;
    prop->sharedMemPerBlock = standin::kSharedBytesUnasked;
    prop->sharedMemPerBlockOptin = standin::kMostSharedBytes;
    prop->warpSize = standin::kWarpThreads;
    prop->maxThreadsPerBlock = standin::kMostThreads;
    prop->multiProcessorCount = 1;
    prop->major = kComputeMajor;
    prop->minor = kComputeMinor;
    prop->pciBusID = device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  cudaDeviceProp prop;
  const cudaError_t status = cudaGetDeviceProperties(&prop, device);
  if (status != cudaSuccess) {
    return status;
  }
  switch (attr) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = prop.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = prop.minor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = prop.multiProcessorCount;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(prop.sharedMemPerBlockOptin);
      break;
    default:
      return call([](Machine&) { return cudaErrorInvalidValue; });
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* pciBusId, int len, int device) {
  return call([&](Machine& machine) {
    if (!exists(machine, device)) {
      return cudaErrorInvalidDevice;
    }
    std::snprintf(pciBusId, static_cast<std::size_t>(len), "0000:%02x:00.0",
                  static_cast<unsigned>(device));
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call([&](Machine& machine) {
    *total = machine.device_bytes;
    *free = machine.device_bytes - machine.memory.used_bytes(host_thread().device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice) {
  return call([&](Machine& machine) {
    if (!exists(machine, device) || !exists(machine, peerDevice)) {
      return cudaErrorInvalidDevice;
    }
    *canAccessPeer = device == peerDevice ? 0 : 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned /*flags*/) {
  return call([&](Machine& machine) {
    const int device = host_thread().device;
    if (!exists(machine, peerDevice) || device == peerDevice) {
      return cudaErrorInvalidDevice;
    }
    return machine.peers.insert({device, peerDevice}).second ? cudaSuccess
                                                             : cudaErrorPeerAccessAlreadyEnabled;
  });
}

cudaError_t cudaDriverGetVersion(int* driverVersion) {
  *driverVersion = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* runtimeVersion) {
  *runtimeVersion = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return std::exchange(host_thread().last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  return host_thread().last_error;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorPeerAccessAlreadyEnabled:
      return "peer access is already enabled";
    default:
      return "an error that the stand-in for a GPU does not give";
  }
}
