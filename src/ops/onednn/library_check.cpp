#include "strata/ops/library_check.hpp"

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/random.hpp"
#include "strata/device/buffer.hpp"
#include "strata/ops/convolution.hpp"
#include "strata/ops/instruction_set.hpp"
#include "strata/ops/matmul.hpp"

namespace strata::ops {
namespace {

/// A tensor that begins `shift` elements behind an aligned address, of values whose sums round.
struct Operand {
  Operand(const Shape& shape, DType dtype, std::int64_t shift, std::uint64_t seed)
      : memory(device::Device::cpu(), (shape.count() + shift) * size_bytes(dtype)),
        view(memory.view(shift * size_bytes(dtype), shape, dtype)) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(shape.count()));
    RandomStream(seed, RandomPurpose::kSynthesise, 0).fill(0, 0, words);
    with_stored(dtype, [&]<typename T>(T) {
      const std::span<T> elements = view.template host<T>();
      for (std::size_t i = 0; i < words.size(); ++i) {
        elements[i] = static_cast<T>(static_cast<Compute<T>>(words[i] * 0x1p-32 - 0.5));
      }
    });
  }

  [[nodiscard]] std::vector<std::byte> bytes() const {
    return {view.raw(), view.raw() + view.bytes()};
  }

  device::Buffer memory;
  TensorView view;
};

/// A linear layer's forward pass, input gradient and weight gradient are products of these forms.
LibraryCase product_case(Context& context, DType dtype, Transpose transpose_a,
                         Transpose transpose_b) {
  constexpr std::int64_t kRows = 32;
  constexpr std::int64_t kColumns = 48;
  constexpr std::int64_t kDepth = 1024;
  const bool transposed_a = transpose_a == Transpose::kYes;
  const bool transposed_b = transpose_b == Transpose::kYes;
  return {
      fmt::format("a {} product of {}{} x {}{} over {}", name_of(dtype), kRows,
                  transposed_a ? " (transposed)" : "", kColumns,
                  transposed_b ? " (transposed)" : "", kDepth),
      [=, &context](std::int64_t shift) {
        const Operand a(transposed_a ? Shape{kDepth, kRows} : Shape{kRows, kDepth}, dtype, shift,
                        1);
        const Operand b(transposed_b ? Shape{kColumns, kDepth} : Shape{kDepth, kColumns}, dtype,
                        shift, 2);
        const Operand c({kRows, kColumns}, transposed_a ? compute_dtype(dtype) : dtype, shift, 3);
        matmul(context, a.view, b.view, c.view,
               {.transpose_a = transpose_a,
                .transpose_b = transpose_b,
                .accumulate = transposed_a ? Accumulate::kAdd : Accumulate::kOverwrite});
        return c.bytes();
      }};
}

ConvolutionShape convolution_shape() {
  const WindowAxis axis{.in = 8, .out = 8, .window = 3, .padding = 1};
  return {.images = 1, .height = axis, .width = axis, .in_channels = 16, .out_channels = 32};
}

enum class Pass { kForward, kBackwardInput, kBackwardWeight };

LibraryCase convolution_case(Context& context, DType dtype, Pass pass, const char* name) {
  return {fmt::format("a {} convolution's {}", name_of(dtype), name),
          [=, &context](std::int64_t shift) {
            const ConvolutionShape shape = convolution_shape();
            const bool weight = pass == Pass::kBackwardWeight;
            const Operand x(shape.input(), dtype, shift, 1);
            const Operand w(shape.weight(), weight ? compute_dtype(dtype) : dtype, shift, 2);
            const Operand y(shape.output(), dtype, shift, 3);
            switch (pass) {
              case Pass::kForward:
                convolution_forward(context, shape, x.view, w.view, y.view);
                return y.bytes();
              case Pass::kBackwardInput:
                convolution_backward_input(context, shape, y.view, w.view, x.view);
                return x.bytes();
              case Pass::kBackwardWeight:
                break;
            }
            convolution_backward_weight(context, shape, x.view, y.view, w.view, Accumulate::kAdd);
            return w.bytes();
          }};
}

/// The classes below the one in use, the highest first.
std::string lower_classes() {
  std::string text;
  for (const auto& [set, name] : enum_table<InstructionSet>()) {
    if (set != InstructionSet::kNative && set < used_instruction_set() &&
        is_arm(set) == is_arm(used_instruction_set())) {
      text = text.empty() ? std::string(name) : fmt::format("{} or {}", name, text);
    }
  }
  return text;
}

}  // namespace

std::vector<LibraryCase> library_cases(Context& context, DType dtype) {
  if (dtype == DType::kFloat64) {
    return {};
  }
  return {product_case(context, dtype, Transpose::kNo, Transpose::kYes),
          product_case(context, dtype, Transpose::kNo, Transpose::kNo),
          product_case(context, dtype, Transpose::kYes, Transpose::kNo),
          convolution_case(context, dtype, Pass::kForward, "forward pass"),
          convolution_case(context, dtype, Pass::kBackwardInput, "input gradient"),
          convolution_case(context, dtype, Pass::kBackwardWeight, "weight gradient")};
}

void require_repeatable(std::span<const LibraryCase> cases) {
  for (const LibraryCase& each : cases) {
    const std::vector<std::byte> first = each.compute(0);
    for (const std::int64_t shift : {0, 1}) {
      if (each.compute(shift) == first) {
        continue;
      }
      const std::string lower = lower_classes();
      fail(
          ExitCode::kPeer,
          "oneDNN {} with {} gives other bits where {} is computed again{}, so that runs would not "
          "be reproducible; {}install another version of oneDNN",
          onednn_version(), name_of(used_instruction_set()), each.name,
          shift == 0 ? "" : " at other addresses",
          lower.empty() ? "" : fmt::format("set numerics.isa to {}, or ", lower));
    }
  }
}

void check_library(DType dtype) {
  Context context(1);
  require_repeatable(library_cases(context, dtype));
}

}  // namespace strata::ops
