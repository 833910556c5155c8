#include "strata/pipeline/stage_times.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "error_of.hpp"

namespace strata::pipeline::stage_times_test {
namespace {

using strata::test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::vector<double>> forwards(const std::string& text, std::int64_t stages,
                                          std::int64_t chunks) {
  std::vector<std::vector<double>> all;
  for (const std::vector<ChunkTimes>& own : parse_chunk_times({"--forward", text}, {"--input", "2"},
                                                              {"--weight", "3"}, stages, chunks)) {
    all.emplace_back();
    for (const ChunkTimes& times : own) {
      all.back().push_back(times.forward_seconds);
      EXPECT_EQ(times.backward_input_seconds, 2.0);
      EXPECT_EQ(times.backward_weight_seconds, 3.0);
    }
  }
  return all;
}

TEST(StageTimes, OneForAllOrForEachRankOrForEachChunk) {
  EXPECT_THAT(forwards("1.5", 2, 1), ElementsAre(ElementsAre(1.5), ElementsAre(1.5)));
  EXPECT_THAT(forwards("1,0", 2, 1), ElementsAre(ElementsAre(1.0), ElementsAre(0.0)));
  EXPECT_THAT(forwards("1/4", 2, 2), ElementsAre(ElementsAre(1.0, 4.0), ElementsAre(1.0, 4.0)));
  EXPECT_THAT(forwards("1/4,2", 2, 2), ElementsAre(ElementsAre(1.0, 4.0), ElementsAre(2.0, 2.0)));
}

TEST(StageTimes, RefusesOtherTexts) {
  struct Case {
    std::string text;
    std::int64_t chunks;
    std::string error;
  };
  for (const Case& row : std::vector<Case>{
           {"", 1, "--forward is \"\"; each of its numbers must be from 0 to"},
           {"1,", 1, "from 0 to 1000000000, not \"\""},
           {"-1", 1, "not \"-1\""},
           {"nan", 1, "not \"nan\""},
           {"1,1,1", 1, "--forward has 3 times for 2 ranks"},
           {"1/1", 1, "--forward has 2 times with slashes between them for 1 chunk a rank"},
           {"1/1/1,1", 2, "--forward has 3 times with slashes between them for 2 chunks a rank"}}) {
    EXPECT_THAT(error_of([&] { (void)forwards(row.text, 2, row.chunks); }, ExitCode::kUsage),
                HasSubstr(row.error));
  }
  const std::int64_t counts[] = {1, 3};
  EXPECT_THAT(parse_times({"--latency", "1,2,0.5"}, counts), ElementsAre(1.0, 2.0, 0.5));
  EXPECT_THAT(error_of(
                  [&] {
                    (void)parse_times({"--latency", "1,2"}, counts);
                  },
                  ExitCode::kUsage),
              HasSubstr("--latency has 2 numbers, it must have 1 or 3"));
}

}  // namespace
}  // namespace strata::pipeline::stage_times_test
