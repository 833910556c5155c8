#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "strata/core/tensor.hpp"

namespace strata::ops {
class Context;
}  // namespace strata::ops

// Included only where CUDA is built.
namespace strata::ops::cuda {

/// Alignment of all addresses given to a library. More than an element, because kernels that load
/// single elements are slow; the same for all tensors, because the choice of a kernel, and so the
/// bits, must not depend on addresses.
inline constexpr std::uint32_t kLibraryAlignmentBytes = 16;

/// Bytes rounded up to the alignment.
constexpr std::int64_t line_bytes(std::int64_t bytes) {
  constexpr std::int64_t kLine = 256;
  return (bytes + kLine - 1) / kLine * kLine;
}

/// The tensors of one library call, with copies in the context's scratch of those that are not
/// aligned. Call reads() and writes() for all tensors, then place().
class AlignedTensors {
 public:
  /// `what` names the operation in errors, as in "copying a product's tensor".
  AlignedTensors(Context& context, const char* what);

  /// Registers a tensor that the library reads; place() sets `at`, to null for an empty tensor.
  void reads(const ConstTensorView& tensor, std::byte*& at);
  /// As reads(), converted to another floating-point dtype.
  void reads_as(DType dtype, const ConstTensorView& tensor, std::byte*& at);
  void writes(const TensorView& tensor, std::byte*& at);
  /// Registers a tensor that the library reads and writes.
  void updates(const TensorView& tensor, std::byte*& at);

  /// Enqueues the copies of inputs. Returns `bytes` of aligned scratch. The scratch is in use until
  /// finish().
  /// Throws: Error(kPeer) where copying fails.
  std::byte* place(std::int64_t bytes);
  /// After the library's call: copies results back to their tensors.
  /// Throws: Error(kPeer) where copying fails.
  void finish() const;

 private:
  struct Operand {
    ConstTensorView tensor;
    DType dtype;
    bool is_read = false;
    /// The destination of a result.
    TensorView result;
    std::byte** at;

    /// Whether the library can use the tensor in place.
    [[nodiscard]] bool is_ready() const;
    /// Scratch bytes of a copy.
    [[nodiscard]] std::int64_t copied_bytes() const;
  };

  void copy(std::byte* to, const ConstTensorView& from) const;

  Context& context_;
  const char* what_;
  std::vector<Operand> operands_;
};

}  // namespace strata::ops::cuda
