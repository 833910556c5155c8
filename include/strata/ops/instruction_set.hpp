#pragma once

#include <string>

#include "strata/core/dtype.hpp"
#include "strata/core/enum_names.hpp"

namespace strata::ops {

/// Classes of the instruction sets by which oneDNN chooses its kernels, of x86-64 and then of Arm,
/// each above the one before. With one version of oneDNN a class gives one set of bits;
/// docs/numerics.md says where the sizes of the caches matter too. Own code is the same under all
/// classes of an architecture.
enum class InstructionSet {
  kNative,      ///< what the CPU has; on CPUs of other architectures the only one
  kAvx2,        ///< oneDNN has no bfloat16 here
  kAvx512,      ///< with BW, DQ and VL
  kAvx512Bf16,  ///< and with products of bfloat16
  kAmx,         ///< and with tiles
  kNeon,        ///< of 64-bit Arm; oneDNN has no bfloat16 here
  kSve          ///< and with vectors of other lengths
};

constexpr auto enum_names(InstructionSet) {
  return names_in_order("native", "avx2", "avx512", "avx512_bf16", "amx", "neon", "sve");
}

constexpr bool is_arm(InstructionSet set) {
  return set >= InstructionSet::kNeon;
}

/// Whether products and convolutions of bfloat16 are computed in float32, from widened operands,
/// and rounded: oneDNN has no kernels for them. On CPUs without classes it is taken to have some.
constexpr bool widens_bfloat16(InstructionSet set) {
  return set == InstructionSet::kAvx2 || is_arm(set);
}

/// The highest class that the CPU and the operating system have, or that ONEDNN_MAX_CPU_ISA allows
/// where that is lower. Leaves oneDNN untouched.
[[nodiscard]] InstructionSet native_instruction_set();

/// Caps oneDNN's instruction sets at `set`; under kNative nothing is capped.
/// Pre: `set` is of this architecture; this process has made no Context, and calls it once.
/// Throws: Error(kPeer) where oneDNN then uses another class.
void cap_instruction_set(InstructionSet set);

/// The class that oneDNN uses in this process.
[[nodiscard]] InstructionSet used_instruction_set();

/// The class of what oneDNN's get_effective_cpu_isa() returns; what a newer version adds is of the
/// highest class that it contains.
[[nodiscard]] InstructionSet class_of_library(unsigned int isa);

/// Whether `a` and `b` give the same bits in `dtype`: float64 has own kernels, and float32 the same
/// ones of oneDNN from kAvx512 to kAmx, with oneDNN 2 also in both classes of Arm.
[[nodiscard]] bool same_bits(InstructionSet a, InstructionSet b, DType dtype);

/// As in "2.6.3".
[[nodiscard]] std::string onednn_version();

}  // namespace strata::ops
