#include "strata/core/error.hpp"

#include "cuda_calls.hpp"

namespace strata::device::cuda {
namespace {

[[noreturn]] void refuse() {
  fail(ExitCode::kPeer, "a GPU was requested, but {}", absence_reason());
}

}  // namespace

std::int64_t device_count() noexcept {
  return 0;
}

const char* absence_reason() noexcept {
  return "this executable was built without CUDA: build it where nvcc is found, or use "
         "run.device = cpu";
}

const char* trouble() noexcept {
  return "";
}

void limit_release_waits(double) noexcept {}

void* allocate(std::int64_t, std::int64_t) {
  refuse();
}

void release(std::int64_t, void*) noexcept {}

void* allocate_pinned(std::int64_t) {
  refuse();
}

void release_pinned(void*) noexcept {}

void* make_stream(std::int64_t, StreamPriority) {
  refuse();
}

void destroy_stream(std::int64_t, void*) noexcept {}

void synchronize_stream(std::int64_t, void*) {
  refuse();
}

bool is_idle(std::int64_t, void*) {
  refuse();
}

bool is_reached(std::int64_t, void*) {
  refuse();
}

void* make_event(std::int64_t) {
  refuse();
}

void* make_timed_event(std::int64_t) {
  refuse();
}

double seconds_between(std::int64_t, void*, void*) {
  refuse();
}

void destroy_event(std::int64_t, void*) noexcept {}

void record_event(std::int64_t, void*, void*) {
  refuse();
}

void stream_waits_for(std::int64_t, void*, void*) {
  refuse();
}

void host_waits_for(std::int64_t, void*) {
  refuse();
}

void begin_recording(std::int64_t, void*) {
  refuse();
}

void* end_recording(std::int64_t, void*) {
  refuse();
}

void drop_recording(std::int64_t, void*) noexcept {}

void destroy_graph(std::int64_t, void*) noexcept {}

void launch_graph(std::int64_t, void*, void*) {
  refuse();
}

void copy(void*, const void*, std::int64_t, void*) {
  refuse();
}

void begin_range(const char*) noexcept {}

void end_range() noexcept {}

std::vector<LibraryVersion> libraries() {
  return {};
}

GpuInfo gpu_info(std::int64_t) {
  refuse();
}

std::int64_t free_memory_bytes(std::int64_t) {
  refuse();
}

bool has_peer_access(std::int64_t, std::int64_t) {
  refuse();
}

CudaVersions versions() noexcept {
  return {};
}

}  // namespace strata::device::cuda
