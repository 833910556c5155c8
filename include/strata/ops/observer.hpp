#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "strata/core/dtype.hpp"

namespace strata::ops {

/// The work of one operation of a Context.
struct OperationWork {
  /// The function. A matrix product's says which operands are transposed and what it applies, as in
  /// "matmul_nt_gelu". A literal.
  std::string_view name;
  /// Of its operands.
  DType dtype = DType::kFloat32;
  /// Of a product m, n, k; of a convolution those of the product of its windows; of attention heads
  /// of all sequences, tokens and head size; else rows and columns of its first tensor.
  std::array<std::int64_t, 3> extents{};
  /// Floating-point operations of products; 0 for operations that memory bounds.
  double flops = 0.0;
  /// Of its tensors, each once.
  double bytes = 0.0;
  /// Bytes that it needs on a GPU besides its tensors, where they are large: at most cuDNN's
  /// workspace of attention, or a copy of a product's operand with rows of zeros.
  std::int64_t scratch = 0;
};

/// Sees the operations of a Context: one that measures lets them run, one that plans does not.
class Observer {
 public:
  Observer() = default;
  virtual ~Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  /// Before an operation, but not before those that it consists of. Returns: whether to leave it
  /// out.
  [[nodiscard]] virtual bool begin(const OperationWork& work) = 0;
  /// After an operation that was not left out.
  virtual void end() {}
};

}  // namespace strata::ops
