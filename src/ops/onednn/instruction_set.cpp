#include "strata/ops/instruction_set.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <string>
#include <string_view>

#include <dnnl.hpp>
#include <fmt/format.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include "strata/core/error.hpp"

namespace strata::ops {
namespace {

/// The caps of the classes, from the lowest. Each number has the bits of those below it, and
/// numbers that later versions of oneDNN add have the bits of what they contain.
struct LibraryCap {
  InstructionSet set;
  dnnl::cpu_isa isa;
};

/// Values of oneDNN's environment variable, of its versions 2 and 3. Those of one class differ in
/// int8 and float16 alone once the class is capped.
struct LibraryName {
  std::string_view name;
  InstructionSet set;
};

#ifdef __aarch64__
// dnnl.hpp has no names for these.
constexpr dnnl::cpu_isa kAdvancedSimd{1};
constexpr std::array<LibraryCap, 2> kLibraryCaps{
    {{InstructionSet::kNeon, kAdvancedSimd}, {InstructionSet::kSve, dnnl::cpu_isa::all}}};
constexpr std::array<LibraryName, 2> kLibraryNames{
    {{"ADVANCED_SIMD", InstructionSet::kNeon}, {"SVE_512", InstructionSet::kSve}}};
#else
constexpr std::array<LibraryCap, 4> kLibraryCaps{
    {{InstructionSet::kAvx2, dnnl::cpu_isa::avx2},
     {InstructionSet::kAvx512, dnnl::cpu_isa::avx512_core},
     {InstructionSet::kAvx512Bf16, dnnl::cpu_isa::avx512_core_bf16},
     {InstructionSet::kAmx, dnnl::cpu_isa::avx512_core_amx}}};
constexpr std::array<LibraryName, 14> kLibraryNames{
    {{"SSE41", InstructionSet::kAvx2},
     {"AVX", InstructionSet::kAvx2},
     {"AVX2", InstructionSet::kAvx2},
     {"AVX2_VNNI", InstructionSet::kAvx2},
     {"AVX2_VNNI_2", InstructionSet::kAvx2},
     {"AVX512_CORE", InstructionSet::kAvx512},
     {"AVX512_CORE_VNNI", InstructionSet::kAvx512},
     {"AVX512_CORE_BF16", InstructionSet::kAvx512Bf16},
     {"AVX512_CORE_FP16", InstructionSet::kAvx512Bf16},
     {"AVX10_1_512", InstructionSet::kAvx512Bf16},
     {"AVX512_CORE_AMX", InstructionSet::kAmx},
     {"AVX512_CORE_AMX_FP16", InstructionSet::kAmx},
     {"AVX10_1_512_AMX", InstructionSet::kAmx},
     {"AVX10_1_512_AMX_FP16", InstructionSet::kAmx}}};
#endif

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
#elif defined(__aarch64__)
/// oneDNN 2 has kernels for SVE vectors of 512 bits alone.
InstructionSet cpu_instruction_set() {
  constexpr int kBytes = 64;
  const bool has_sve =
      (getauxval(AT_HWCAP) & HWCAP_SVE) != 0 &&
      (dnnl_version()->major > 2 || (prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) == kBytes);
  return has_sve ? InstructionSet::kSve : InstructionSet::kNeon;
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
  std::string most = text == nullptr ? "" : text;
  for (char& letter : most) {
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  const auto* const entry =
      std::ranges::find(kLibraryNames, std::string_view(most), &LibraryName::name);
  return entry == kLibraryNames.end() ? of_cpu : std::min(of_cpu, entry->set);
}

void cap_instruction_set(InstructionSet set) {
  if (set == InstructionSet::kNative) {
    return;
  }
  const auto* const cap = std::ranges::find(kLibraryCaps, set, &LibraryCap::set);
  const dnnl::status status = dnnl::set_max_cpu_isa(cap->isa);
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
  return class_of_library(static_cast<unsigned int>(dnnl::get_effective_cpu_isa()));
}

InstructionSet class_of_library(unsigned int isa) {
  if (isa == 0) {
    return InstructionSet::kNative;
  }
#ifdef __aarch64__
  return isa == static_cast<unsigned int>(kAdvancedSimd) ? InstructionSet::kNeon
                                                         : InstructionSet::kSve;
#else
  InstructionSet highest = InstructionSet::kAvx2;
  for (const LibraryCap& cap : kLibraryCaps) {
    const auto bits = static_cast<unsigned int>(cap.isa);
    highest = (isa & bits) == bits ? cap.set : highest;
  }
  return highest;
#endif
}

bool same_bits(InstructionSet a, InstructionSet b, DType dtype) {
  // On Arm oneDNN 2 computes what strata asks for without SVE.
  const auto is_avx512 = [](InstructionSet set) {
    return set >= InstructionSet::kAvx512 && !is_arm(set);
  };
  const bool alike =
      (is_avx512(a) && is_avx512(b)) || (is_arm(a) && is_arm(b) && dnnl_version()->major == 2);
  return a == b || dtype == DType::kFloat64 || (dtype == DType::kFloat32 && alike);
}

std::string onednn_version() {
  const dnnl_version_t* const version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

}  // namespace strata::ops
