#include "strata/device/buffer.hpp"

#include <atomic>
#include <cstring>
#include <new>

#include <sys/mman.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/device/gpu_info.hpp"

#include "cuda_calls.hpp"

namespace strata::device {
namespace {

/// Size of the pages that large buffers ask for.
constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

std::align_val_t alignment_of(std::int64_t bytes) {
  return static_cast<std::align_val_t>(bytes < kHugePageBytes ? Buffer::kAlignmentBytes
                                                              : kHugePageBytes);
}

/// Requests huge pages for the aligned part: fewer TLB misses in passes over the arenas, and fewer
/// page look-ups when processes of a node copy messages. The kernel may refuse; only speed depends
/// on it.
void advise_huge_pages(void* memory, std::int64_t bytes) {
  const std::int64_t whole = bytes / kHugePageBytes * kHugePageBytes;
  if (whole > 0) {
    static_cast<void>(::madvise(memory, static_cast<std::size_t>(whole), MADV_HUGEPAGE));
  }
}

/// Addresses of a planned device's memory, each given once; nothing is there.
std::byte* planned_address(std::int64_t bytes) {
  constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 52;
  static std::atomic<std::uintptr_t> next{kFirst};
  constexpr auto kAlignment = static_cast<std::uintptr_t>(Buffer::kAlignmentBytes);
  const auto size = (static_cast<std::uintptr_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): never dereferenced.
  return reinterpret_cast<std::byte*>(next.fetch_add(size));
}

std::byte* allocate(const Device& device, std::int64_t bytes) {
  if (device.kind() == DeviceKind::kCuda) {
    return static_cast<std::byte*>(cuda::allocate(device.index(), bytes));
  }
  if (device.is_planned()) {
    return planned_address(bytes);
  }
  void* memory = ::operator new(static_cast<std::size_t>(bytes), alignment_of(bytes), std::nothrow);
  if (memory != nullptr) {
    advise_huge_pages(memory, bytes);
    std::memset(memory, 0, static_cast<std::size_t>(bytes));
  }
  return static_cast<std::byte*>(memory);
}

void copy_bytes(const ConstTensorView& from, const TensorView& to, Stream* stream) {
  require(from.dtype() == to.dtype() && from.count() == to.count(),
          "copy of {} {} to {} {} elements", from.count(), name_of(from.dtype()), to.count(),
          name_of(to.dtype()));
  if (from.bytes() == 0) {
    return;
  }
  if (from.memory_space() == MemorySpace::kHost && to.memory_space() == MemorySpace::kHost) {
    std::memmove(to.raw(), from.raw(), static_cast<std::size_t>(from.bytes()));
  } else if (stream == nullptr) {
    cuda::copy(to.raw(), from.raw(), from.bytes());
  } else {
    cuda::copy(stream->device().index(), to.raw(), from.raw(), from.bytes(), stream->raw());
  }
}

}  // namespace

void Buffer::Release::operator()(std::byte* memory) const noexcept {
  if (device.kind() == DeviceKind::kCuda) {
    cuda::release(device.index(), memory);
  } else if (!device.is_planned()) {
    ::operator delete(memory, alignment_of(bytes));
  }
}

Buffer::Buffer(const Device& device, std::int64_t bytes) : memory_(nullptr, {device, bytes}) {
  require(bytes >= 0, "a buffer of {} bytes", bytes);
  if (bytes == 0) {
    return;
  }
  memory_.reset(allocate(device, bytes));
  if (memory_ == nullptr) {
    fail(ExitCode::kPeer,
         "cannot allocate {} on {}{}; use more ranks, a smaller batch.micro, train.recompute or a "
         "smaller model",
         bytes_text(bytes), device.text(),
         device.kind() == DeviceKind::kCuda
             ? ": " + bytes_text(free_memory_bytes(device.index())) + " are free"
             : "");
  }
}

TensorView Buffer::view(std::int64_t offset_bytes, const Shape& shape, DType dtype) const {
  const TensorView tensor(raw() + offset_bytes, shape, dtype, device().memory_space());
  require(offset_bytes >= 0 && offset_bytes + tensor.bytes() <= bytes(),
          "a tensor of {} bytes at {} in a buffer of {} bytes", tensor.bytes(), offset_bytes,
          bytes());
  require(offset_bytes % size_bytes(dtype) == 0, "a {} tensor at byte {}", name_of(dtype),
          offset_bytes);
  return tensor;
}

void copy_tensor(const ConstTensorView& from, const TensorView& to) {
  copy_bytes(from, to, nullptr);
}

void copy_tensor(const ConstTensorView& from, const TensorView& to, Stream& stream) {
  copy_bytes(from, to, &stream);
}

}  // namespace strata::device
