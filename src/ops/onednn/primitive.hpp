#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <dnnl.hpp>

#include "strata/core/dtype.hpp"

namespace strata::ops {

/// The type of a primitive's operand: float32 where library_widens(dtype).
[[nodiscard]] dnnl::memory::data_type library_type(DType dtype);

/// Whether primitives of `dtype`, bfloat16, compute in float32 under the instruction set in use,
/// and convert what they read and write.
[[nodiscard]] bool library_widens(DType dtype);

/// Attributes of every primitive: the caller provides scratch memory, and neither the environment
/// nor the library trades bits for speed.
[[nodiscard]] dnnl::primitive_attr primitive_attributes();

/// oneDNN 2 describes an operation before the primitive; oneDNN 3 has no such step.
template <typename Kind>
concept HasOperationDescriptor = requires {
  typename Kind::desc;
};

/// The descriptor of a primitive of this kind, as dnnl::matmul, from the arguments of its
/// operation; a backward pass has the forward descriptor as its hint. The one place that knows
/// oneDNN's versions apart.
template <typename Kind, typename... Arguments>
typename Kind::primitive_desc described(const dnnl::engine& engine,
                                        const dnnl::primitive_attr& attributes,
                                        const Arguments&... arguments) {
  if constexpr (HasOperationDescriptor<Kind>) {
    return {typename Kind::desc(arguments...), attributes, engine};
  } else {
    return {engine, arguments..., attributes};
  }
}
template <typename Kind, typename Hint, typename... Arguments>
typename Kind::primitive_desc described_backward(const dnnl::engine& engine, const Hint& hint,
                                                 const Arguments&... arguments) {
  if constexpr (HasOperationDescriptor<Kind>) {
    return {typename Kind::desc(arguments...), primitive_attributes(), engine, hint};
  } else {
    return {engine, arguments..., hint, primitive_attributes()};
  }
}

/// A tensor that a primitive reads or writes.
struct PrimitiveArgument {
  int name = 0;  ///< one of DNNL_ARG_...
  dnnl::memory::desc desc;
  /// Whether the caller's tensor is bfloat16 where `desc` is float32.
  bool is_converted = false;
};

/// A oneDNN primitive with its descriptor.
struct PrimitiveDescription {
  dnnl::primitive primitive;
  std::vector<PrimitiveArgument> arguments;
  dnnl::memory::desc scratch;
};

/// A oneDNN primitive that runs on the calling thread only.
class Primitive {
 public:
  Primitive(const dnnl::engine& engine, int threads, const PrimitiveDescription& description);

  /// Of one thread: the library's, then converted operands.
  [[nodiscard]] std::int64_t scratch_bytes() const { return scratch_bytes_; }
  /// Bytes of operand `index` of the description.
  [[nodiscard]] std::int64_t operand_bytes(std::size_t index) const {
    return operand_bytes_[index];
  }
  /// `operands` are in the description's order. `thread` is the calling thread's number; calls with
  /// different numbers may run concurrently.
  [[nodiscard]] dnnl_status_t run(int thread, const dnnl::stream& stream, std::byte* scratch,
                                  std::span<std::byte* const> operands) noexcept;

 private:
  /// Operands of each thread, the scratch memory last.
  struct Operands {
    std::vector<dnnl::memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;
    std::vector<std::byte*> placed;
  };
  /// An operand that is converted: its float32 numbers in the scratch memory.
  struct Converted {
    std::size_t operand = 0;
    std::int64_t offset_bytes = 0;
    std::int64_t count = 0;
    bool is_result = false;
  };
  [[nodiscard]] dnnl_status_t execute(int thread, const dnnl::stream& stream, std::byte* scratch,
                                      std::span<std::byte* const> operands) noexcept;

  dnnl::primitive primitive_;
  std::int64_t scratch_bytes_;
  std::vector<std::int64_t> operand_bytes_;
  std::vector<Converted> converted_;
  std::vector<Operands> of_thread_;
};

}  // namespace strata::ops
