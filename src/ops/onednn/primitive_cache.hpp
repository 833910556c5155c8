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

/// The oneDNN side of a Context: engine, one stream and scratch memory a thread, kernels by key.
class PrimitiveCache {
 public:
  explicit PrimitiveCache(int threads);

  /// The kernel for `key`, made at its first use. Not to be called by two threads at a time.
  [[nodiscard]] Primitive& primitive(const std::variant<ProductKey, ConvolutionKey>& key);
  /// Makes each thread's staging memory at least this large. Not to be called by two threads at a
  /// time.
  void reserve_staging(std::int64_t bytes);
  /// Memory of the team's thread `thread`, for the operands of a product.
  [[nodiscard]] std::byte* staging(int thread) {
    return staging_[static_cast<std::size_t>(thread)].raw();
  }
  /// Memory for one operation, which all threads share.
  [[nodiscard]] std::byte* shared(std::int64_t bytes);
  /// Runs on the calling thread, the team's thread `thread`; a failure is kept for check().
  void run(Primitive& primitive, int thread, std::span<std::byte* const> operands) noexcept;
  /// Throws the first failure of a run since the last call. To be called after the threads' work,
  /// for an exception may not leave it.
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
