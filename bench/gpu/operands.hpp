#pragma once

#include <cstdint>
#include <vector>

#include "strata/core/tensor.hpp"
#include "strata/device/buffer.hpp"
#include "strata/device/device.hpp"
#include "strata/ops/context.hpp"

namespace strata::bench {

/// A GPU to measure, and numbers for operands: zeros draw less power, and clocks would be higher
/// than in training.
class Machine {
 public:
  /// Pre: `device` is a GPU, numbers >= 1.
  Machine(const device::Device& device, std::int64_t numbers);

  /// With cuDNN where it takes the shape, or with own kernels alone.
  [[nodiscard]] ops::Context& context(ops::LibraryKernels kernels = ops::LibraryKernels::kLibrary) {
    return kernels == ops::LibraryKernels::kLibrary ? context_ : own_context_;
  }
  /// Gives elements numbers that are spread evenly between -1 and 1, and waits until they have
  /// them. Pre: a floating-point dtype.
  void fill(const TensorView& tensor);

 private:
  ops::Context context_;
  ops::Context own_context_;
  device::Buffer numbers_;
  std::int64_t count_;
};

/// Ids whose frequencies fall as those of words do, and how many different ones they are.
struct TokenIds {
  TensorView ids;
  std::int64_t different = 0;
};

/// The tensors of one call of an operation, in memory of their own, and the bytes that the call
/// must move between the processor and memory: what it reads or writes once, what it updates twice.
class Operands {
 public:
  Operands(Machine& machine, ops::LibraryKernels kernels) : machine_(&machine), kernels_(kernels) {}

  [[nodiscard]] ops::Context& context() const { return machine_->context(kernels_); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  [[nodiscard]] TensorView read(const Shape& shape, DType dtype = DType::kBfloat16);
  [[nodiscard]] TensorView written(const Shape& shape, DType dtype = DType::kBfloat16);
  /// Begins with zeros.
  [[nodiscard]] TensorView updated(const Shape& shape, DType dtype = DType::kBfloat16);
  /// Token ids that are read. Pre: vocabulary >= 1. Source of the frequencies, 1 / rank: Zipf,
  /// "Human behavior and the principle of least effort", 1949.
  [[nodiscard]] TokenIds token_ids(std::int64_t rows, std::int64_t vocabulary);
  /// Zeros, of which count() says what is moved.
  [[nodiscard]] TensorView uncounted(const Shape& shape, DType dtype = DType::kBfloat16);
  void count(std::int64_t bytes) { bytes_ += bytes; }

 private:
  Machine* machine_;
  ops::LibraryKernels kernels_;
  std::vector<device::Buffer> buffers_;
  std::int64_t bytes_ = 0;
};

}  // namespace strata::bench
