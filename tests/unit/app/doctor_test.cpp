#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "commands/planning/doctor_report.hpp"

namespace strata::app::doctor_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two nodes of two GPUs and eight cores, a rank to each GPU and four cores.
std::vector<RankFacts> good_launch() {
  std::vector<RankFacts> ranks;
  for (int r = 0; r < 4; ++r) {
    RankFacts& facts = ranks.emplace_back();
    facts.host = r < 2 ? "node1" : "node2";
    facts.rank_on_node = r % 2;
    facts.ranks_on_node = 2;
    facts.cores = r % 2 == 0 ? "0-3" : "4-7";
    facts.core_count = 4;
    facts.node_cores = facts.job_cores = 8;
    facts.threads = 4;
    facts.instruction_set = "amx";
    facts.open_files = 20000;
    facts.interfaces = {"eth0"};
    facts.gpu_name = "H200";
    facts.gpus_seen = 2;
    facts.libraries = {{"provider", "/usr/lib/libibverbs.so.1"}};
    facts.gpu_bus_id = fmt::format("0000:0{}:00.0", r % 2);
    facts.gpu_uuid = fmt::format("GPU-{}", r);
    facts.gpu_memory_bytes = std::int64_t{1} << 37;
    facts.gpu_free_bytes = std::int64_t{1} << 36;
    facts.driver_version = 13000;
    facts.runtime_version = 13000;
    facts.versions = {{"NCCL", "2.28.9"}, {"executable", "12ab"}};
  }
  return ranks;
}

TEST(Doctor, HasNothingToSayOfAGoodLaunch) {
  EXPECT_THAT(problems(good_launch()), IsEmpty());
}

TEST(Doctor, NamesAQuotaThatStopsThreads) {
  std::vector<RankFacts> ranks = good_launch();
  ranks[2].cpu_quota = ranks[3].cpu_quota = 8.0;
  EXPECT_THAT(problems(ranks), IsEmpty());
  ranks[2].cpu_quota = ranks[3].cpu_quota = 7.5;
  EXPECT_THAT(problems(ranks),
              ElementsAre(HasSubstr("ranks 2 and 3 have 8 threads, but the cgroup on node2 has a "
                                    "quota of 7.5 CPUs")));
  ranks.resize(1);
  ranks[0].threads = 1;
  ranks[0].cpu_quota = 0.5;
  EXPECT_THAT(problems(ranks), ElementsAre(HasSubstr("rank 0 has 1 thread, but the cgroup")));
  EXPECT_THAT(system_text(ranks), HasSubstr(", 0.5 CPUs of time\n"));
  EXPECT_EQ(unpacked(packed(ranks[0])), ranks[0]);
}

TEST(Doctor, IsContentWithCpusAlone) {
  std::vector<RankFacts> ranks = good_launch();
  for (RankFacts& facts : ranks) {
    facts.gpu_name = facts.gpu_bus_id = "";
    facts.driver_version = 0;
    facts.nccl_absence = "libnccl.so.2 was not found on this node";
    facts.versions.front().version = "built for, but not found on this node";
  }
  EXPECT_THAT(problems(ranks), IsEmpty());
}

TEST(Doctor, NamesRanksThatShareAGpuOfOneNode) {
  std::vector<RankFacts> ranks = good_launch();
  ranks[3].gpu_bus_id = ranks[2].gpu_bus_id;
  // Two slices of a card.
  EXPECT_THAT(problems(ranks), IsEmpty());
  ranks[3].gpu_uuid = ranks[2].gpu_uuid;
  EXPECT_THAT(problems(ranks),
              ElementsAre(HasSubstr("ranks 2 and 3 share the GPU 0000:00:00.0 of node2")));
}

TEST(Doctor, NamesRanksWithoutAGpuWhereOthersHaveOne) {
  std::vector<RankFacts> ranks = good_launch();
  ranks[2].gpu_bus_id = "";
  ranks[3].gpu_bus_id = "";
  EXPECT_THAT(problems(ranks), ElementsAre(AllOf(HasSubstr("ranks 2 and 3 see no GPU"),
                                                 HasSubstr("node2"), HasSubstr("run.device"))));
}

TEST(Doctor, NamesGpusThatDoNotReachEachOther) {
  std::vector<RankFacts> ranks = good_launch();
  ranks[1].unreachable = {"0000:00:00.0"};
  EXPECT_THAT(problems(ranks),
              ElementsAre(HasSubstr(
                  "0000:01:00.0 of rank 1 on node1 has no peer-to-peer access to 0000:00:00.0")));
}

TEST(Doctor, NamesAGpuThatDoesNotAnswer) {
  std::vector<RankFacts> ranks = good_launch();
  ranks[1].gpu_failure = "asking for its memory failed";
  EXPECT_THAT(problems(ranks), ElementsAre("rank 1 on node1: asking for its memory failed"));
}

TEST(Doctor, WantsADriverOfTheRuntimesMajorVersion) {
  std::vector<RankFacts> ranks = good_launch();
  for (RankFacts& facts : ranks) {
    facts.runtime_version = 13010;
  }
  EXPECT_THAT(problems(ranks), IsEmpty());
  ranks[2].driver_version = ranks[3].driver_version = 12040;
  EXPECT_THAT(problems(ranks),
              ElementsAre(AllOf(HasSubstr("driver of node2 supports CUDA up to 12.4"),
                                HasSubstr("built with 13.1"))));
}

TEST(Doctor, NamesClocksLimitsAndInterfacesThatDoNotServe) {
  struct Case {
    std::function<void(RankFacts&)> change;  // of rank 2, on node2
    std::string problem;
  };
  const std::vector<Case> cases{
      {[](RankFacts& facts) { facts.clock_offset_seconds = -1.5; }, "differ by 1.5 s: synchronize"},
      {[](RankFacts& facts) { facts.open_files = 256; }, "node2: a rank may open 256 files"},
      {[](RankFacts& facts) { facts.interfaces.clear(); }, "node2: no network interface is up"},
      {[](RankFacts& facts) {
         facts.fabric = {"mlx5_0"};
         facts.locked_memory_bytes = 65536;
       },
       "node2: a rank may lock 64.00 KiB of memory, which is too little for mlx5_0"},
  };
  for (const Case& one : cases) {
    std::vector<RankFacts> ranks = good_launch();
    one.change(ranks[2]);
    EXPECT_THAT(problems(ranks), ElementsAre(HasSubstr(one.problem)));
    EXPECT_EQ(unpacked(packed(ranks[2])), ranks[2]);
  }
  // Unlimited memory, and limits that matter to InfiniBand alone.
  std::vector<RankFacts> ranks = good_launch();
  ranks[0].fabric = {"mlx5_0"};
  ranks[1].locked_memory_bytes = 65536;
  EXPECT_THAT(problems(ranks), IsEmpty());
}

TEST(Doctor, NamesALibraryThatIsMissingOnANodeOnce) {
  std::vector<RankFacts> ranks = good_launch();
  for (RankFacts& facts : ranks) {
    facts.versions.front() = {"cuDNN", "built for, but not found on this node"};
  }
  EXPECT_THAT(problems(ranks),
              ElementsAre(AllOf(HasSubstr("cuDNN is"), HasSubstr("on node1: install it")),
                          AllOf(HasSubstr("cuDNN is"), HasSubstr("on node2: install it"))));
}

TEST(Doctor, NamesARankWithAnotherBuildOrLibrary) {
  std::vector<RankFacts> ranks = good_launch();
  ranks[3].versions = {{"NCCL", "2.27.0"}, {"executable", "34cd"}};
  EXPECT_THAT(
      problems(ranks),
      ElementsAre(HasSubstr("rank 3 on node2 has NCCL 2.27.0 and rank 0 on node1 2.28.9"),
                  HasSubstr("rank 3 on node2 has executable 34cd and rank 0 on node1 12ab")));
}

TEST(Doctor, CountsThreadsOnSharedCores) {
  std::vector<RankFacts> ranks = good_launch();
  ranks[1].cores = "0-3";
  ranks[1].threads = 2;
  EXPECT_THAT(problems(ranks),
              ElementsAre(HasSubstr("ranks 0 and 1 have 6 threads on 4 cores of node1 (0-3)")));
}

TEST(Doctor, FactsTravelAsText) {
  std::vector<RankFacts> ranks = good_launch();
  ranks[1].unreachable = {"0000:00:00.0", "0000:07:00.0"};
  ranks[1].gpu_failure = "a \"quoted\" text";
  ranks[1].nccl_absence = "none";
  EXPECT_EQ(unpacked(packed(ranks[1])), ranks[1]);
}

TEST(Doctor, ShowsARowForEachRank) {
  std::vector<RankFacts> ranks = good_launch();
  ranks[3].gpu_bus_id = "";
  const std::string text = facts_text(ranks);
  EXPECT_THAT(text, HasSubstr("H200"));
  EXPECT_THAT(text, HasSubstr("amx"));
  EXPECT_THAT(text, HasSubstr("64.00 GiB of 128.00 GiB"));
  EXPECT_THAT(text, HasSubstr("none"));
  EXPECT_THAT(text, HasSubstr("1 of 2"));
}

}  // namespace
}  // namespace strata::app::doctor_test
