#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include <dnnl.hpp>

#include "strata/device/buffer.hpp"

#include "onednn/convolution_primitive.hpp"
#include "onednn/primitive.hpp"
#include "onednn/product_primitive.hpp"

namespace strata::ops {

/// The oneDNN side of a Context: engine, a stream and scratch memory for each thread, cached
/// primitives.
class PrimitiveCache {
 public:
  explicit PrimitiveCache(int threads);

  /// The primitive for `key`, created at first use. Not thread-safe.
  [[nodiscard]] Primitive& primitive(const std::variant<ProductKey, ConvolutionKey>& key);
  /// Grows each thread's staging memory to at least this size. Not thread-safe.
  void reserve_staging(std::int64_t bytes);
  /// Staging memory of thread `thread`, for the operands of a product.
  [[nodiscard]] std::byte* staging(int thread) {
    return staging_[static_cast<std::size_t>(thread)].raw();
  }
  /// Memory for one operation, shared by all threads.
  [[nodiscard]] std::byte* shared(std::int64_t bytes);
  /// Runs on the calling thread, number `thread`; check() reports a failure.
  void run(Primitive& primitive, int thread, std::span<std::byte* const> operands) noexcept;
  /// Throws the first failure since the last call. Call it after the parallel region, which no
  /// exception may leave.
  void check();

 private:
  int threads_;
  dnnl::engine engine_;
  std::vector<dnnl::stream> streams_;
  std::vector<device::Buffer> scratch_;
  std::vector<device::Buffer> staging_;
  device::Buffer shared_;
  std::atomic<dnnl_status_t> status_{dnnl_success};
  std::map<std::variant<ProductKey, ConvolutionKey>, std::unique_ptr<Primitive>> primitives_;
};

}  // namespace strata::ops
