#include "onednn/primitive.hpp"

#include <algorithm>
#include <array>

#include "strata/core/error.hpp"
#include "strata/ops/instruction_set.hpp"

namespace strata::ops {
namespace {

std::int64_t whole_lines(std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  return (bytes + kLine - 1) / kLine * kLine;
}

/// Later versions of oneDNN 3 have it.
template <typename Attributes>
void ask_for_determinism(Attributes& attributes) {
  if constexpr (requires { attributes.set_deterministic(true); }) {
    attributes.set_deterministic(true);
  }
}

}  // namespace

dnnl::memory::data_type library_type(DType dtype) {
  require(dtype == DType::kFloat32 || dtype == DType::kBfloat16, "a library kernel of {}",
          name_of(dtype));
  return dtype == DType::kFloat32 || library_widens(dtype) ? dnnl::memory::data_type::f32
                                                           : dnnl::memory::data_type::bf16;
}

bool library_widens(DType dtype) {
  return dtype == DType::kBfloat16 && widens_bfloat16(used_instruction_set());
}

dnnl::primitive_attr primitive_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_fpmath_mode(
      dnnl::fpmath_mode::strict);  // whatever ONEDNN_DEFAULT_FPMATH_MODE says
  ask_for_determinism(attributes);
  return attributes;
}

Primitive::Primitive(const dnnl::engine& engine, int threads,
                     const PrimitiveDescription& description)
    : primitive_(description.primitive),
      scratch_bytes_(whole_lines(static_cast<std::int64_t>(description.scratch.get_size()))) {
  constexpr std::array kResults{DNNL_ARG_DST, DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_WEIGHTS};
  std::vector<PrimitiveArgument> arguments = description.arguments;
  for (const PrimitiveArgument& argument : arguments) {
    const auto bytes = static_cast<std::int64_t>(argument.desc.get_size());
    if (argument.is_converted) {
      converted_.push_back({.operand = operand_bytes_.size(),
                            .offset_bytes = scratch_bytes_,
                            .count = bytes / size_bytes(DType::kFloat32),
                            .is_result = std::ranges::count(kResults, argument.name) > 0});
      scratch_bytes_ += whole_lines(bytes);
    }
    operand_bytes_.push_back(bytes);
  }
  arguments.push_back({DNNL_ARG_SCRATCHPAD, description.scratch});
  for (int thread = 0; thread < threads; ++thread) {
    Operands operands;
    for (const PrimitiveArgument& argument : arguments) {
      operands.memories.push_back(dnnl::memory(argument.desc, engine, DNNL_MEMORY_NONE));
      operands.arguments.push_back({argument.name, operands.memories.back().get()});
      operands.placed.push_back(nullptr);
    }
    of_thread_.push_back(std::move(operands));
  }
}

dnnl_status_t Primitive::run(int thread, const dnnl::stream& stream, std::byte* scratch,
                             std::span<std::byte* const> operands) noexcept {
  if (converted_.empty()) {
    return execute(thread, stream, scratch, operands);
  }
  std::array<std::byte*, 4> widened{};
  std::ranges::copy(operands, widened.begin());
  for (const Converted& of : converted_) {
    const auto* const from = reinterpret_cast<const BFloat16*>(operands[of.operand]);
    auto* const to = reinterpret_cast<float*>(scratch + of.offset_bytes);
    // A result too, for it may be added to.
#pragma omp simd
    for (std::int64_t i = 0; i < of.count; ++i) {
      to[i] = static_cast<float>(from[i]);
    }
    widened[of.operand] = scratch + of.offset_bytes;
  }
  const dnnl_status_t status = execute(thread, stream, scratch, widened);
  for (const Converted& of : converted_) {
    const auto* const from = reinterpret_cast<const float*>(scratch + of.offset_bytes);
    auto* const to = reinterpret_cast<BFloat16*>(operands[of.operand]);
    if (of.is_result) {
#pragma omp simd
      for (std::int64_t i = 0; i < of.count; ++i) {
        to[i] = static_cast<BFloat16>(from[i]);
      }
    }
  }
  return status;
}

dnnl_status_t Primitive::execute(int thread, const dnnl::stream& stream, std::byte* scratch,
                                 std::span<std::byte* const> operands) noexcept {
  Operands& own = of_thread_[static_cast<std::size_t>(thread)];
  const std::size_t last = own.memories.size() - 1;
  for (std::size_t i = 0; i <= last; ++i) {
    std::byte* const at = i == last ? scratch : operands[i];
    // Setting a padded operand's address makes oneDNN write its padding.
    if (own.placed[i] != at) {
      const dnnl_status_t status = dnnl_memory_set_data_handle(own.arguments[i].memory, at);
      if (status != dnnl_success) {
        return status;
      }
      own.placed[i] = at;
    }
  }
  return dnnl_primitive_execute(primitive_.get(), stream.get(),
                                static_cast<int>(own.arguments.size()), own.arguments.data());
}

}  // namespace strata::ops
