#include "strata/ops/library_check.hpp"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/ops/instruction_set.hpp"

#include "onednn/primitive.hpp"
#include "tensors.hpp"

namespace strata::ops::library_check_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LibraryCheck, PassesOnThisCpu) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat64}) {
    EXPECT_NO_THROW(check_library(dtype));
  }
}

TEST(LibraryCheck, CasesAreComputed) {
  Context context(1);
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    std::set<std::uint64_t> results;
    const std::vector<LibraryCase> cases = library_cases(context, dtype);
    for (const LibraryCase& each : cases) {
      results.insert(hash_of(each.compute(0)));
    }
    EXPECT_EQ(results.size(), cases.size());
    EXPECT_GE(cases.size(), 6U);
  }
}

/// Cases of which the last has one other bit in its call `call`, counted from 0.
std::vector<LibraryCase> spoilt_cases(Context& context, int call) {
  std::vector<LibraryCase> cases = library_cases(context, DType::kFloat32);
  cases.back().compute = [calls = 0, call,
                          whole = cases.back().compute](std::int64_t shift) mutable {
    std::vector<std::byte> result = whole(shift);
    if (calls++ == call) {
      result.back() ^= std::byte{1};
    }
    return result;
  };
  return cases;
}

TEST(LibraryCheck, NamesACaseWithOtherBits) {
  Context context(1);
  for (const int call : {0, 1, 2}) {
    const std::vector<LibraryCase> cases = spoilt_cases(context, call);
    try {
      require_repeatable(cases);
      ADD_FAILURE() << "call " << call;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kPeer);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("oneDNN " + onednn_version()),
                                      HasSubstr(std::string(name_of(used_instruction_set()))),
                                      HasSubstr("a float32 convolution's weight gradient"),
                                      HasSubstr("another version of oneDNN")));
      EXPECT_EQ(std::string(error.what()).find("at other addresses") != std::string::npos,
                call == 2);
      EXPECT_EQ(std::string(error.what()).find("numerics.isa") != std::string::npos,
                used_instruction_set() != InstructionSet::kAvx2 &&
                    used_instruction_set() != InstructionSet::kNeon);
    }
  }
}

TEST(PrimitiveAttributes, KeepBitsWhateverTheDefaultIs) {
  const dnnl::fpmath_mode before = dnnl::get_default_fpmath_mode();
  dnnl::set_default_fpmath_mode(dnnl::fpmath_mode::bf16);  // as ONEDNN_DEFAULT_FPMATH_MODE=BF16
  EXPECT_EQ(dnnl::primitive_attr().get_fpmath_mode(), dnnl::fpmath_mode::bf16);
  EXPECT_EQ(primitive_attributes().get_fpmath_mode(), dnnl::fpmath_mode::strict);
  dnnl::set_default_fpmath_mode(before);
}

TEST(InstructionSet, UsedIsTheNativeOne) {
  EXPECT_EQ(used_instruction_set(), native_instruction_set());
}

TEST(InstructionSet, ACapThatComesTooLateIsAnError) {
  const InstructionSet used = used_instruction_set();
  const auto [low, high] = is_arm(used) ? std::pair(InstructionSet::kNeon, InstructionSet::kSve)
                                        : std::pair(InstructionSet::kAvx2, InstructionSet::kAmx);
  const InstructionSet other = used == low ? high : low;
  try {
    cap_instruction_set(other);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kPeer);
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("set numerics.isa to {}", name_of(used))));
  }
}

TEST(InstructionSet, OfWhatALibraryReturnsIsTheHighestThatItContains) {
  using enum InstructionSet;
  for (const auto& [isa, set] : std::vector<std::pair<unsigned int, InstructionSet>>{
#ifdef __aarch64__
           {0x0, kNative},   // none
           {0x1, kNeon},     // Advanced SIMD
           {0x3, kSve},      // SVE of 128 bits
           {0x1f, kSve}}) {  // SVE of 512 bits
#else
           {0x0, kNative},        // none
           {0x1, kAvx2},          // SSE4.1
           {0x7, kAvx2},          // AVX2
           {0x1f, kAvx2},         // AVX2 with bfloat16
           {0x27, kAvx512},       // AVX-512
           {0x67, kAvx512},       // with VNNI
           {0xe7, kAvx512Bf16},   // with bfloat16
           {0x1ef, kAvx512Bf16},  // AVX10.1
           {0x3fef, kAmx}}) {     // a later one with AMX
#endif
    EXPECT_EQ(class_of_library(isa), set) << isa;
  }
}

TEST(InstructionSet, BitsDifferByDtype) {
  using enum InstructionSet;
  EXPECT_TRUE(same_bits(kAmx, kAvx512, DType::kFloat32));
  EXPECT_FALSE(same_bits(kAvx2, kAvx512, DType::kFloat32));
  EXPECT_FALSE(same_bits(kAvx512Bf16, kAvx512, DType::kBfloat16));
  EXPECT_FALSE(same_bits(kAmx, kAvx512Bf16, DType::kBfloat16));
  EXPECT_TRUE(same_bits(kAmx, kAmx, DType::kBfloat16));
  EXPECT_TRUE(same_bits(kAvx2, kAmx, DType::kFloat64));
  EXPECT_TRUE(same_bits(kAvx2, kSve, DType::kFloat64));
  EXPECT_EQ(same_bits(kNeon, kSve, DType::kFloat32), onednn_version().starts_with("2."));
  EXPECT_FALSE(same_bits(kAvx2, kNeon, DType::kFloat32));
  EXPECT_FALSE(same_bits(kAmx, kNeon, DType::kFloat32));
}

}  // namespace
}  // namespace strata::ops::library_check_test
