#include "strata/ops/instruction_set.hpp"

#include <algorithm>
#include <cstdlib>

#include <dnnl.hpp>
#include <fmt/format.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "strata/core/error.hpp"

namespace strata::ops {
namespace {

/// oneDNN's names and numbers, of its environment variable and of its interface. Those of one class
/// differ in int8 alone.
struct LibraryName {
  std::string_view name;
  dnnl::cpu_isa isa;
  InstructionSet set;
};
constexpr std::array<LibraryName, 8> kLibraryNames{
    {{"SSE41", dnnl::cpu_isa::sse41, InstructionSet::kAvx2},
     {"AVX", dnnl::cpu_isa::avx, InstructionSet::kAvx2},
     {"AVX2_VNNI", dnnl::cpu_isa::avx2_vnni, InstructionSet::kAvx2},
     {"AVX2", dnnl::cpu_isa::avx2, InstructionSet::kAvx2},
     {"AVX512_CORE_VNNI", dnnl::cpu_isa::avx512_core_vnni, InstructionSet::kAvx512},
     {"AVX512_CORE", dnnl::cpu_isa::avx512_core, InstructionSet::kAvx512},
     {"AVX512_CORE_BF16", dnnl::cpu_isa::avx512_core_bf16, InstructionSet::kAvx512Bf16},
     {"AVX512_CORE_AMX", dnnl::cpu_isa::avx512_core_amx, InstructionSet::kAmx}}};

#ifdef __x86_64__
/// Whether the CPU has AMX and Linux keeps its registers. Source: Linux, Documentation/x86/xstate.
bool has_amx() {
  constexpr unsigned int kInstructions = 1U << 22 | 1U << 24 | 1U << 25;  // bf16, tile, int8
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
      (edx & kInstructions) != kInstructions) {
    return false;
  }
  constexpr int kGetSupported = 0x1021;        // ARCH_GET_XCOMP_SUPP
  constexpr unsigned long kTiles = 3UL << 17;  // XFEATURE_MASK_XTILE
  unsigned long supported = 0;
  return syscall(SYS_arch_prctl, kGetSupported, &supported) == 0 && (supported & kTiles) == kTiles;
}

InstructionSet cpu_instruction_set() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return InstructionSet::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bf16")) {
    return InstructionSet::kAvx512;
  }
  return has_amx() ? InstructionSet::kAmx : InstructionSet::kAvx512Bf16;
}
#else
InstructionSet cpu_instruction_set() {
  return InstructionSet::kNative;
}
#endif

}  // namespace

InstructionSet native_instruction_set() {
  const InstructionSet of_cpu = cpu_instruction_set();
  const char* text = std::getenv("ONEDNN_MAX_CPU_ISA");
  text = text == nullptr ? std::getenv("DNNL_MAX_CPU_ISA") : text;
  const std::string_view most = text == nullptr ? "" : text;
  const auto* const entry = std::ranges::find(kLibraryNames, most, &LibraryName::name);
  return entry == kLibraryNames.end() ? of_cpu : std::min(of_cpu, entry->set);
}

void cap_instruction_set(InstructionSet set) {
  if (set == InstructionSet::kNative) {
    return;
  }
  const auto last =
      std::ranges::find(kLibraryNames.rbegin(), kLibraryNames.rend(), set, &LibraryName::set);
  const dnnl::status status = dnnl::set_max_cpu_isa(last->isa);
  const InstructionSet used = used_instruction_set();
  if (used != set) {
    fail(ExitCode::kPeer,
         "oneDNN {} was asked for {} and uses {}{}; set numerics.isa to {}, or look whether this "
         "process may use {}",
         onednn_version(), name_of(set), name_of(used),
         status == dnnl::status::success ? "" : " (it takes no cap)", name_of(used), name_of(set));
  }
}

InstructionSet used_instruction_set() {
  const auto* const entry =
      std::ranges::find(kLibraryNames, dnnl::get_effective_cpu_isa(), &LibraryName::isa);
  return entry == kLibraryNames.end() ? InstructionSet::kNative : entry->set;
}

bool same_bits(InstructionSet a, InstructionSet b, DType dtype) {
  const bool both_wide = std::min(a, b) >= InstructionSet::kAvx512;
  return a == b || dtype == DType::kFloat64 || (dtype == DType::kFloat32 && both_wide);
}

std::string onednn_version() {
  const dnnl_version_t* const version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace strata::ops
