#include "environment/instruction_sets.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/comm/agree.hpp"

namespace strata::app::instruction_sets_test {
namespace {

using ops::InstructionSet;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<RankInstructionSet> kMixed{{"node1", InstructionSet::kAmx},
                                             {"node2", InstructionSet::kAvx512},
                                             {"node3", InstructionSet::kAvx512Bf16}};
const std::vector<RankInstructionSet> kOld{{"node4", InstructionSet::kAvx2}};
const std::vector<RankInstructionSet> kArm{{"node5", InstructionSet::kSve},
                                           {"node6", InstructionSet::kNeon}};

std::string refusal(const std::vector<RankInstructionSet>& ranks, InstructionSet asked,
                    DType dtype) {
  try {
    (void)common_instruction_set(ranks, asked, dtype);
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(InstructionSets, NativeIsTheLowestOfTheRanks) {
  const auto native = [](const std::vector<RankInstructionSet>& ranks) {
    return common_instruction_set(ranks, InstructionSet::kNative, DType::kFloat32);
  };
  EXPECT_EQ(native(kMixed).set, InstructionSet::kAvx512);
  EXPECT_EQ(native(kMixed).text, "avx512 (rank 1 on node2 has no more)");
  EXPECT_EQ(native(kOld).set, InstructionSet::kAvx2);
  EXPECT_EQ(native(kOld).text, "avx2");
  EXPECT_EQ(native(kArm).text, "neon (rank 1 on node6 has no more)");
}

TEST(InstructionSets, WhatIsAskedForIsTakenWhereEveryRankHasIt) {
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    const CommonInstructionSet common = common_instruction_set(kMixed, set, DType::kFloat32);
    EXPECT_EQ(common.set, set);
    EXPECT_EQ(common.text, name_of(set));
  }
  EXPECT_THAT(refusal(kMixed, InstructionSet::kAvx512Bf16, DType::kFloat32),
              AllOf(HasSubstr("numerics.isa is avx512_bf16"), HasSubstr("rank 1 on node2"),
                    HasSubstr("set it to avx512 or to native")));
}

TEST(InstructionSets, ClassesOfAnotherArchitectureAreRefused) {
  EXPECT_THAT(refusal(kArm, InstructionSet::kAvx2, DType::kFloat32),
              AllOf(HasSubstr("numerics.isa is avx2"), HasSubstr("rank 1 on node6 has neon"),
                    HasSubstr("set it to neon or to native")));
  EXPECT_THAT(refusal(kOld, InstructionSet::kNeon, DType::kFloat32),
              AllOf(HasSubstr("numerics.isa is neon"), HasSubstr("rank 0 on node4 has avx2"),
                    HasSubstr("set it to avx2 or to native")));
}

TEST(InstructionSets, SayWhereBfloat16IsComputedInFloat32) {
  const auto text = [](const std::vector<RankInstructionSet>& ranks, InstructionSet set) {
    return common_instruction_set(ranks, set, DType::kBfloat16).text;
  };
  const std::string widened = "; products of bfloat16 are computed in float32, which is slower";
  EXPECT_EQ(text(kArm, InstructionSet::kNative), "neon (rank 1 on node6 has no more)" + widened);
  EXPECT_EQ(text(kOld, InstructionSet::kNative), "avx2" + widened);
  EXPECT_EQ(text(kMixed, InstructionSet::kAvx2), "avx2" + widened);
  EXPECT_EQ(text(kMixed, InstructionSet::kAvx512), "avx512");
  // A CPU of an architecture without classes.
  EXPECT_EQ(text({{"node4", InstructionSet::kNative}}, InstructionSet::kNative), "native");
}

}  // namespace
}  // namespace strata::app::instruction_sets_test
