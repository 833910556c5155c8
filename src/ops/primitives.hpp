#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <dnnl.hpp>

#include "strata/core/dtype.hpp"
#include "strata/device/buffer.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {

/// What one oneDNN matrix product is made for: c[m, n] from a[m, k] and b[k, n], each without gaps
/// between its rows: with gaps oneDNN would take a kernel that is slower and sums in another order.
struct ProductKey {
  DType operands = DType::kFloat32;  ///< of a, b and the bias
  DType result = DType::kFloat32;    ///< of c
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  Accumulate accumulate = Accumulate::kOverwrite;
  bool has_bias = false;

  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm in the defaulted comparison.
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

/// Where a product's operands lie, of the key's dtypes; bias may be null.
struct ProductOperands {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  const std::byte* bias = nullptr;
  std::byte* c = nullptr;
};

/// One oneDNN matrix product, made to run on the calling thread alone.
class Product {
 public:
  Product(const dnnl::engine& engine, int threads, const ProductKey& key);

  [[nodiscard]] std::int64_t scratch_bytes() const { return scratch_bytes_; }
  /// `thread` is the caller's number; calls with different numbers may run at the same time.
  void run(int thread, dnnl::stream& stream, std::byte* scratch, const ProductOperands& operands);

 private:
  struct Memories {
    dnnl::memory a;
    dnnl::memory b;
    dnnl::memory bias;
    dnnl::memory c;
    dnnl::memory scratch;
  };

  dnnl::matmul primitive_;
  bool has_bias_;
  std::int64_t scratch_bytes_;
  std::vector<Memories> memories_;
};

/// The oneDNN side of a Context: engine, one stream and scratch memory a thread, products by key.
class Primitives {
 public:
  explicit Primitives(int threads);

  /// The product for `key`, made at its first use. Not to be called by two threads at a time.
  [[nodiscard]] Product& product(const ProductKey& key);
  /// Makes each thread's staging memory at least this large. Not to be called by two threads at a
  /// time.
  void reserve_staging(std::int64_t bytes);
  /// Memory of the team's thread `thread`, for the operands of a product.
  [[nodiscard]] std::byte* staging(int thread) {
    return staging_[static_cast<std::size_t>(thread)].raw();
  }
  /// Memory for the sums of one product, which all threads share.
  [[nodiscard]] std::byte* sums(std::int64_t bytes);
  /// Runs on the calling thread, the team's thread `thread`.
  void run(Product& product, int thread, const ProductOperands& operands);

 private:
  int threads_;
  dnnl::engine engine_;
  std::vector<dnnl::stream> streams_;
  std::vector<device::Buffer> scratch_;
  std::vector<device::Buffer> staging_;
  device::Buffer sums_;
  std::map<ProductKey, std::unique_ptr<Product>> products_;
};

}  // namespace strata::ops
