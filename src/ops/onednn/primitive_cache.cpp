#include "onednn/primitive_cache.hpp"

#include <fmt/format.h>
#include <omp.h>

#include "strata/core/memory.hpp"

namespace strata::ops {
namespace {

/// Throws: OutOfMemory where oneDNN fails for want of memory, for which it may give any other
/// reason.
template <typename Call>
void call_library(const Call& call) {
  try {
    call();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory || memory_is_short()) {
      throw OutOfMemory(fmt::format("oneDNN says \"{}\"", error.what()));
    }
    throw;
  }
}

void grow(std::span<device::Buffer> buffers, std::int64_t bytes) {
  for (device::Buffer& buffer : buffers) {
    if (buffer.bytes() < bytes) {
      buffer = device::Buffer(device::Device::cpu(), bytes);
    }
  }
}

}  // namespace

PrimitiveCache::PrimitiveCache(int threads)
    : threads_(threads), engine_(dnnl::engine::kind::cpu, 0) {
  for (int thread = 0; thread < threads; ++thread) {
    streams_.emplace_back(engine_);
  }
  scratch_.resize(static_cast<std::size_t>(threads));
  staging_.resize(static_cast<std::size_t>(threads));
}

void PrimitiveCache::reserve_staging(std::int64_t bytes) {
  grow(staging_, bytes);
}

Primitive& PrimitiveCache::primitive(const std::variant<ProductKey, ConvolutionKey>& key) {
  std::unique_ptr<Primitive>& slot = primitives_[key];
  if (slot == nullptr) {
    // We thread over primitives: a primitive that never splits its work has the same bits for any
    // number of threads. oneDNN reads that number when it creates a primitive.
    omp_set_num_threads(1);
    call_library([&] {
      slot = std::make_unique<Primitive>(
          engine_, threads_,
          std::visit([&](const auto& of) { return describe(engine_, of); }, key));
    });
    grow(scratch_, slot->scratch_bytes());
  }
  return *slot;
}

std::byte* PrimitiveCache::shared(std::int64_t bytes) {
  grow(std::span(&shared_, 1), bytes);
  return shared_.raw();
}

void PrimitiveCache::run(Primitive& primitive, int thread,
                         std::span<std::byte* const> operands) noexcept {
  // Some of oneDNN's implementations read the number at each run.
  omp_set_num_threads(1);
  const auto index = static_cast<std::size_t>(thread);
  const dnnl_status_t status =
      primitive.run(thread, streams_[index], scratch_[index].raw(), operands);
  dnnl_status_t none = dnnl_success;
  if (status != dnnl_success) {
    status_.compare_exchange_strong(none, status);
  }
}

void PrimitiveCache::check() {
  call_library(
      [&] { dnnl::error::wrap_c_api(status_.exchange(dnnl_success), "a library kernel failed"); });
}

}  // namespace strata::ops
