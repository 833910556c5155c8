#include "runtime.hpp"

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "blocks.hpp"
#include "machine.hpp"

// The CUDA runtime's functions for memory, streams, events and launches, as far as strata calls
// them. What they do is what CUDA's documentation says of them.

using standin::call;
using standin::call_apart;
using standin::Machine;
using standin::Memory;
using standin::Position;
using standin::Stream;

namespace {

/// Whether a copy may read or write there, as what `kind` says it is.
bool is_fit(const Machine& machine, const void* address, std::size_t bytes, bool may_be_device,
            bool may_be_host) {
  if (Memory::is_device(address)) {
    return may_be_device && machine.memory.holds(address, bytes);
  }
  return may_be_host && address != nullptr;
}

/// From pageable memory of the host bytes are taken at once; a copy to it is waited for.
cudaError_t copy(Machine& machine, void* to, const void* from, std::size_t bytes,
                 cudaMemcpyKind kind, cudaStream_t handle) {
  const std::shared_ptr<Stream> stream = machine.find(handle);
  if (stream == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (bytes == 0) {
    return cudaSuccess;
  }
  const bool any = kind == cudaMemcpyDefault;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (!is_fit(machine, to, bytes, any || to_device, any || !to_device) ||
      !is_fit(machine, from, bytes, any || from_device, any || !from_device)) {
    return cudaErrorInvalidValue;
  }
  const auto is_pageable = [&](const void* address) {
    return !Memory::is_device(address) && !machine.memory.is_pinned(address);
  };
  if (stream->recording != nullptr && (is_pageable(from) || is_pageable(to))) {
    stream->recording->is_broken = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  standin_describe("copy", 0.0);
  if (is_pageable(from)) {
    const auto* const first = static_cast<const std::byte*>(from);
    put(*stream, {[to, staged = std::vector<std::byte>(first, first + bytes)] {
                    std::memcpy(to, staged.data(), staged.size());
                  },
                  {}});
  } else {
    put(*stream, {[to, from, bytes] { std::memmove(to, from, bytes); }, {}});
  }
  if (is_pageable(to)) {
    machine.finish(stream);
  }
  return cudaSuccess;
}

cudaError_t set(Machine& machine, void* at, int value, std::size_t bytes, cudaStream_t handle) {
  const std::shared_ptr<Stream> stream = machine.find(handle);
  if (stream == nullptr || !machine.memory.holds(at, bytes)) {
    return stream == nullptr ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue;
  }
  standin_describe("fill", 0.0);
  put(*stream, {[at, value, bytes] { std::memset(at, value, bytes); }, {}});
  return cudaSuccess;
}

/// "kernel" and where it lies in the program.
std::string kernel_name(const void* kernel) {
  Dl_info info{};
  if (standin_records() == 0 || dladdr(kernel, &info) == 0) {
    return "kernel";
  }
  char text[64];
  std::snprintf(text, sizeof(text), "kernel %zx",
                static_cast<std::size_t>(static_cast<const char*>(kernel) -
                                         static_cast<const char*>(info.dli_fbase)));
  return text;
}

/// "Not ready" where there is work before the position, of which some is then done.
cudaError_t query(Machine& machine, const Position& position) {
  return machine.make_progress(position) ? cudaErrorNotReady : cudaSuccess;
}

}  // namespace

cudaError_t standin::launch(const cudaLaunchConfig_t& config, const void* kernel, const char* name,
                            std::function<void()> thread) {
  return call([&](Machine& machine) {
    const dim3& grid = config.gridDim;
    const dim3& block = config.blockDim;
    if (grid.x == 0 || grid.y != 1 || grid.z != 1 || block.x == 0 || block.x > kMostThreads ||
        block.y != 1 || block.z != 1) {
      return cudaErrorInvalidConfiguration;
    }
    const auto asked = machine.shared_limits.find(kernel);
    if (config.dynamicSmemBytes >
        (asked == machine.shared_limits.end() ? kSharedBytesUnasked : asked->second)) {
      return cudaErrorInvalidValue;
    }
    const std::shared_ptr<Stream> stream = machine.find(config.stream);
    if (stream == nullptr || stream->device != host_thread().device) {
      return cudaErrorInvalidResourceHandle;
    }
    standin_describe(kernel_name(kernel).c_str(), 0.0);
    put(*stream, {[what = Launch{grid.x, block.x, config.dynamicSmemBytes, name,
                                 std::move(thread)}] { run_blocks(what); },
                  {}});
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* func, cudaFuncAttribute attr, int value) {
  return call([&](Machine& machine) {
    const auto bytes = static_cast<std::size_t>(value);
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || bytes > standin::kMostSharedBytes) {
      return cudaErrorInvalidValue;
    }
    machine.shared_limits[func] = bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
  return call([&](Machine& machine) {
    const std::shared_ptr<Stream> found = machine.find(stream);
    if (found == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    put(*found, {[fn, userData] { fn(userData); }, {}});
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** devPtr, std::size_t size) {
  return call_apart([&](Machine& machine) {
    *devPtr = machine.memory.allocate(standin::host_thread().device, size, machine.device_bytes);
    return *devPtr == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFree(void* devPtr) {
  return call_apart([&](Machine& machine) {
    machine.finish_device(standin::host_thread().device);
    return devPtr == nullptr || machine.memory.release(devPtr) ? cudaSuccess
                                                               : cudaErrorInvalidValue;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  return call([&](Machine& machine) {
    *attributes = {};
    attributes->type =
        machine.memory.is_pinned(ptr) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    if (const std::optional<int> device = machine.memory.device_of(ptr)) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = *device;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMallocHost(void** ptr, std::size_t size) {
  return call_apart([&](Machine& machine) {
    *ptr = machine.memory.allocate_pinned(size);
    return *ptr == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* ptr) {
  return call_apart([&](Machine& machine) {
    for (int device = 0; device < machine.devices; ++device) {
      machine.finish_device(device);
    }
    return ptr == nullptr || machine.memory.release_pinned(ptr) ? cudaSuccess
                                                                : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call([&](Machine& machine) { return copy(machine, dst, src, count, kind, stream); });
}

cudaError_t cudaMemcpy(void* dst, const void* src, std::size_t count, cudaMemcpyKind kind) {
  return call_apart([&](Machine& machine) {
    const cudaError_t status = copy(machine, dst, src, count, kind, nullptr);
    if (status == cudaSuccess) {
      machine.finish(machine.find(nullptr));
    }
    return status;
  });
}

cudaError_t cudaMemsetAsync(void* devPtr, int value, std::size_t count, cudaStream_t stream) {
  return call([&](Machine& machine) { return set(machine, devPtr, value, count, stream); });
}

cudaError_t cudaMemset(void* devPtr, int value, std::size_t count) {
  return cudaMemsetAsync(devPtr, value, count, nullptr);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned flags) {
  return call([&](Machine& machine) {
    // Streams that wait for the default stream by themselves are not there.
    if (flags != cudaStreamNonBlocking) {
      return cudaErrorInvalidValue;
    }
    auto made = std::make_shared<Stream>();
    made->device = standin::host_thread().device;
    *pStream = reinterpret_cast<cudaStream_t>(made.get());
    machine.streams.emplace(*pStream, std::move(made));
    return cudaSuccess;
  });
}

// Nothing runs beside anything else here, so priorities change nothing.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned flags, int priority) {
  int least = 0;
  int greatest = 0;
  static_cast<void>(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  return priority < greatest || priority > least ? cudaErrorInvalidValue
                                                 : cudaStreamCreateWithFlags(pStream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  *leastPriority = 0;
  *greatestPriority = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call_apart([&](Machine& machine) {
    const auto found = machine.streams.find(stream);
    if (found == machine.streams.end()) {
      return cudaErrorInvalidResourceHandle;
    }
    machine.finish(found->second);
    machine.streams.erase(found);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call_apart([&](Machine& machine) {
    const std::shared_ptr<Stream> found = machine.find(stream);
    if (found == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    machine.finish(found);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call_apart([&](Machine& machine) {
    const std::shared_ptr<Stream> found = machine.find(stream);
    return found == nullptr ? cudaErrorInvalidResourceHandle
                            : query(machine, {found, found->queued});
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return call([&](Machine& machine) {
    const std::shared_ptr<Stream> found = machine.find(stream);
    const auto awaited = machine.events.find(event);
    if (found == nullptr || awaited == machine.events.end()) {
      return cudaErrorInvalidResourceHandle;
    }
    put(*found, {{}, awaited->second.position});
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call_apart([&](Machine& machine) {
    machine.finish_device(standin::host_thread().device);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call([&](Machine& machine) {
    if (flags != cudaEventDisableTiming && flags != cudaEventDefault) {
      return cudaErrorInvalidValue;
    }
    // A handle is a number: that of no other event before or after.
    *event = reinterpret_cast<cudaEvent_t>(++machine.last_event);
    machine.events[*event] = {standin::host_thread().device, flags, {}, nullptr};
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call([&](Machine& machine) {
    return machine.events.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&](Machine& machine) {
    const std::shared_ptr<Stream> found = machine.find(stream);
    const auto recorded = machine.events.find(event);
    if (found == nullptr || recorded == machine.events.end() ||
        recorded->second.device != found->device) {
      return cudaErrorInvalidResourceHandle;
    }
    if (recorded->second.flags == cudaEventDefault) {
      recorded->second.reached_at = std::make_shared<std::uint64_t>();
      put(*found, {{}, {}, recorded->second.reached_at});
    }
    recorded->second.position = {found, found->queued};
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call_apart([&](Machine& machine) {
    const auto found = machine.events.find(event);
    if (found == machine.events.end()) {
      return cudaErrorInvalidResourceHandle;
    }
    machine.finish({found->second.position});
    return cudaSuccess;
  });
}

// Each piece of work, of any stream, takes a microsecond.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  return call([&](Machine& machine) {
    for (const cudaEvent_t event : {first, second}) {
      const auto found = machine.events.find(event);
      if (found == machine.events.end() || found->second.flags == cudaEventDisableTiming ||
          found->second.position.stream == nullptr) {
        return cudaErrorInvalidResourceHandle;
      }
      if (const cudaError_t reached = query(machine, found->second.position);
          reached != cudaSuccess) {
        return reached;
      }
    }
    const auto time_of = [&](cudaEvent_t event) {
      return static_cast<double>(*machine.events.at(event).reached_at);
    };
    *milliseconds = static_cast<float>(1e-3 * (time_of(second) - time_of(first)));
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call_apart([&](Machine& machine) {
    const auto found = machine.events.find(event);
    return found == machine.events.end() ? cudaErrorInvalidResourceHandle
                                         : query(machine, found->second.position);
  });
}
