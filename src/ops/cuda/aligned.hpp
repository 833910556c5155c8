#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "strata/core/tensor.hpp"

namespace strata::ops {
class Context;
}  // namespace strata::ops

// Included by .cu files alone.
namespace strata::ops::cuda {

/// What the addresses that a library gets are multiples of. More than an element, for kernels that
/// load one element at a time are slow; the same for all, for the choice of a kernel, and with it
/// the bits, must not follow from addresses.
inline constexpr std::uint32_t kLibraryAlignmentBytes = 16;

/// Bytes in whole lines of memory: what is behind them is aligned as what is in front.
constexpr std::int64_t line_bytes(std::int64_t bytes) {
  constexpr std::int64_t kLine = 256;
  return (bytes + kLine - 1) / kLine * kLine;
}

/// The tensors of one call of a library, with copies in the context's scratch for those that do not
/// lie as the library wants them. First all tensors are named, then they are placed.
class AlignedTensors {
 public:
  /// `what` says in an error what failed, as "copying a product's tensor".
  AlignedTensors(Context& context, const char* what);

  /// The library reads the tensor at `at`, which place() sets; an empty one is at null.
  void reads(const ConstTensorView& tensor, std::byte*& at);
  /// The same for the tensor's values in another floating-point dtype.
  void reads_as(DType dtype, const ConstTensorView& tensor, std::byte*& at);
  void writes(const TensorView& tensor, std::byte*& at);
  /// It writes the tensor and reads it first.
  void updates(const TensorView& tensor, std::byte*& at);

  /// Puts the copies of what is read on the context's stream. Returns `bytes` of scratch, aligned
  /// as the tensors are. The scratch is in use up to finish().
  /// Throws: Error(kPeer) where copying fails.
  std::byte* place(std::int64_t bytes);
  /// Behind the library's call: brings results that stand in copies to where they belong.
  /// Throws: Error(kPeer) where copying fails.
  void finish() const;

 private:
  struct Operand {
    ConstTensorView tensor;
    DType dtype;
    bool is_read = false;
    /// The tensor where it is written.
    TensorView result;
    std::byte** at;

    /// Whether the library can have the tensor where and as it is.
    [[nodiscard]] bool is_ready() const;
    /// What a copy takes of the scratch.
    [[nodiscard]] std::int64_t copied_bytes() const;
  };

  void copy(std::byte* to, const ConstTensorView& from) const;

  Context& context_;
  const char* what_;
  std::vector<Operand> operands_;
};

}  // namespace strata::ops::cuda
