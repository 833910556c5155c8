#include "onednn/primitive.hpp"

#include "strata/core/error.hpp"

namespace strata::ops {
namespace {

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
  return dtype == DType::kFloat32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
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
      scratch_bytes_(static_cast<std::int64_t>(description.scratch.get_size())) {
  std::vector<PrimitiveArgument> arguments = description.arguments;
  for (const PrimitiveArgument& argument : arguments) {
    operand_bytes_.push_back(static_cast<std::int64_t>(argument.desc.get_size()));
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
