#pragma once

#include <cstdint>
#include <functional>

#include "strata/device/gpu_info.hpp"
#include "strata/device/stream.hpp"

// The CUDA calls of `device` as plain functions, implemented in cuda.cu, and in cuda_absent.cpp for
// builds without CUDA, as are those of its public functions that CUDA answers. All except the
// noexcept ones throw Error(kPeer) where the device fails.
namespace strata::device::cuda {

/// Whether an event knows when it was reached.
enum class EventTiming { kOff, kOn };

/// The reason why there is no GPU, for error texts.
[[nodiscard]] const char* absence_reason() noexcept;
/// Zeroed device memory, or null when out of memory.
[[nodiscard]] void* allocate(std::int64_t device, std::int64_t bytes);
void release(std::int64_t device, void* memory) noexcept;

[[nodiscard]] void* make_stream(std::int64_t device, StreamPriority priority);
void destroy_stream(std::int64_t device, void* stream) noexcept;
void synchronize_stream(std::int64_t device, void* stream);
[[nodiscard]] bool is_idle(std::int64_t device, void* stream);

[[nodiscard]] void* make_event(std::int64_t device, EventTiming timing);
void destroy_event(std::int64_t device, void* event) noexcept;
void record_event(std::int64_t device, void* event, void* stream);
void stream_waits_for(std::int64_t device, void* stream, void* event);
void host_waits_for(std::int64_t device, void* event);
[[nodiscard]] bool is_reached(std::int64_t device, void* event);
/// Pre: both are timed and reached.
[[nodiscard]] double seconds_between(std::int64_t device, void* first, void* second);

/// Captures what `work` enqueues on the stream, which is not executed. Returns: the instantiated
/// cudaGraphExec_t. Throws: what `work` throws.
[[nodiscard]] void* record_graph(std::int64_t device, void* stream,
                                 const std::function<void()>& work);
void destroy_graph(std::int64_t device, void* graph) noexcept;
void launch_graph(std::int64_t device, void* graph, void* stream);

/// Copies between any two addresses, on the GPU of one of them, and waits for the copy.
void copy(void* to, const void* from, std::int64_t bytes);
/// The same in order of `stream`, which is of `device`; does not wait.
void copy(std::int64_t device, void* to, const void* from, std::int64_t bytes, void* stream);

[[nodiscard]] GpuInfo gpu_info(std::int64_t device);

}  // namespace strata::device::cuda
