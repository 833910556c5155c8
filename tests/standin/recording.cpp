#include <cuda_runtime_api.h>

#include "machine.hpp"
#include "runtime.hpp"

// The CUDA runtime's functions that record the work of a stream and give it again. A graph here is
// a list: work of one stream, in its order.

using standin::call;
using standin::host_thread;
using standin::Machine;
using standin::Recording;
using standin::Stream;

namespace {

template <typename Handle>
Handle keep(Machine& machine, std::shared_ptr<Recording> graph) {
  machine.graphs.emplace(++machine.last_graph, std::move(graph));
  return reinterpret_cast<Handle>(machine.last_graph);
}

template <typename Handle>
std::shared_ptr<Recording> find(const Machine& machine, Handle handle) {
  const auto found = machine.graphs.find(reinterpret_cast<std::uintptr_t>(handle));
  return found == machine.graphs.end() ? nullptr : found->second;
}

template <typename Handle>
cudaError_t forget(Machine& machine, Handle handle) {
  return machine.graphs.erase(reinterpret_cast<std::uintptr_t>(handle)) == 1
             ? cudaSuccess
             : cudaErrorInvalidValue;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&](Machine& machine) {
    const std::shared_ptr<Stream> found = machine.find(stream);
    if (found == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    // The default stream cannot be recorded; one thread records one stream.
    if (stream == nullptr || mode != cudaStreamCaptureModeThreadLocal ||
        found->recording != nullptr || host_thread().recording != nullptr) {
      return cudaErrorStreamCaptureUnsupported;
    }
    found->recording = std::make_shared<Recording>();
    found->recording->device = found->device;
    host_thread().recording = found->recording;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* pCaptureStatus) {
  return call([&](Machine& machine) {
    const std::shared_ptr<Stream> found = machine.find(stream);
    if (found == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    *pCaptureStatus =
        found->recording == nullptr ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* pGraph) {
  return call([&](Machine& machine) {
    const std::shared_ptr<Stream> found = machine.find(stream);
    if (found == nullptr || found->recording == nullptr) {
      return cudaErrorInvalidValue;
    }
    if (found->recording != host_thread().recording) {
      return cudaErrorStreamCaptureWrongThread;
    }
    const std::shared_ptr<Recording> graph = std::exchange(found->recording, nullptr);
    host_thread().recording = nullptr;
    *pGraph = graph->is_broken ? nullptr : keep<cudaGraph_t>(machine, graph);
    return graph->is_broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  return call([&](Machine& machine) {
    const std::shared_ptr<Recording> found = find(machine, graph);
    if (found == nullptr) {
      return cudaErrorInvalidValue;
    }
    *pGraphExec = keep<cudaGraphExec_t>(machine, found);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
  return call([&](Machine& machine) {
    const std::shared_ptr<Recording> graph = find(machine, graphExec);
    const std::shared_ptr<Stream> found = machine.find(stream);
    if (graph == nullptr || found == nullptr || found->device != graph->device) {
      return cudaErrorInvalidValue;
    }
    for (const auto& action : graph->actions) {
      put(*found, {action, {}});
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call([&](Machine& machine) { return forget(machine, graph); });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
  return call([&](Machine& machine) { return forget(machine, graphExec); });
}
