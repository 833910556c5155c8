#include "strata/core/error.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/pinned_buffer.hpp"
#include "strata/device/profile_range.hpp"

#include "cuda_calls.hpp"

namespace strata::device::cuda {
namespace {

[[noreturn]] void refuse() {
  fail(ExitCode::kPeer, "a GPU was requested, but {}", absence_reason());
}

}  // namespace

const char* absence_reason() noexcept {
  return "this executable was built without CUDA: build it where nvcc is found, or use "
         "run.device = cpu";
}

void* allocate(std::int64_t, std::int64_t) {
  refuse();
}

void release(std::int64_t, void*) noexcept {}

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

void* make_event(std::int64_t, EventTiming) {
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

void* record_graph(std::int64_t, void*, const std::function<void()>&) {
  refuse();
}

void destroy_graph(std::int64_t, void*) noexcept {}

void launch_graph(std::int64_t, void*, void*) {
  refuse();
}

void copy(void*, const void*, std::int64_t) {
  refuse();
}

void copy(std::int64_t, void*, const void*, std::int64_t, void*) {
  refuse();
}

GpuInfo gpu_info(std::int64_t) {
  refuse();
}

}  // namespace strata::device::cuda

namespace strata::device {

std::int64_t cuda_device_count() {
  return 0;
}

std::string gpu_trouble() {
  return "";
}

void limit_release_waits(double /*seconds*/) {}

PinnedBuffer::PinnedBuffer(const Device& /*device*/, std::int64_t /*bytes*/) {
  cuda::refuse();
}

PinnedBuffer::~PinnedBuffer() {}

ProfileRange::ProfileRange(const std::string& /*name*/) {}

ProfileRange::~ProfileRange() {}

std::vector<LibraryVersion> cuda_libraries() {
  return {};
}

std::int64_t free_memory_bytes(std::int64_t /*index*/) {
  cuda::refuse();
}

bool has_peer_access(std::int64_t /*index*/, std::int64_t /*other*/) {
  cuda::refuse();
}

CudaVersions cuda_versions() {
  return {};
}

}  // namespace strata::device
