#include "environment/placement.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/error.hpp"

#include "../io/data_files.hpp"
#include "environment/cpu_cores.hpp"
#include "environment/temporary_directory.hpp"
#include "error_of.hpp"

namespace strata::app::placement_test {
namespace {

using io::test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two nodes of 16 cores and two GPUs, two ranks on each, bound to eight cores each.
std::vector<Placement> good_ranks() {
  std::vector<Placement> ranks;
  for (int r = 0; r < 4; ++r) {
    ranks.push_back({.host = r < 2 ? "node1" : "node2",
                     .cores = r % 2 == 0 ? "0-7" : "8-15",
                     .core_count = 8,
                     .node_cores = 16,
                     .job_cores = 16,
                     .threads = 8,
                     .gpus_seen = 2,
                     .gpu_bus_id = fmt::format("0000:0{}:00.0", r % 2),
                     .gpu_uuid = fmt::format("GPU-{}", r),
                     .fabric = {"cxi0"},
                     .libraries = {{"MPI", "/opt/mpi/lib/libmpi.so.12"},
                                   {"libfabric", "/opt/cray/libfabric.so.1"},
                                   {"provider", "/usr/lib/libcxi.so.1"}}});
  }
  return ranks;
}

std::vector<std::string> problems_of(const std::vector<Placement>& ranks) {
  return placement_problems(ranks, Oversubscription::kAccepted);
}

void bind(Placement& rank, const char* cores) {
  rank.cores = cores;
  rank.core_count = std::ssize(core_numbers(cores));
}

TEST(Placement, HasNothingToSayOfAGoodLaunch) {
  EXPECT_THAT(placement_problems(good_ranks(), Oversubscription::kReported), IsEmpty());
}

TEST(Placement, NamesTheHabitsOfSites) {
  struct Habit {
    const char* name;
    std::function<void(std::vector<Placement>&)> change;
    std::vector<const char*> said;  // parts of one message; empty: nothing
  };
  const std::vector<Habit> habits{
      {"a mask of one core for a rank with more threads",
       [](auto& ranks) { bind(ranks[2], "3"); },
       {"rank 2 has 8 threads on 1 core of node2 (3)", "--cpus-per-task"}},
      {"two ranks on one core",
       [](auto& ranks) {
         for (const int r : {0, 1}) {
           bind(ranks[r], "5");
           ranks[r].threads = 1;
         }
         ranks[0].job_cores = 2;
       },
       {"ranks 0 and 1 have 2 threads on 1 core of node1 (5)"}},
      {"masks that overlap",
       [](auto& ranks) {
         bind(ranks[0], "0-3");
         bind(ranks[1], "2-5");
         ranks[0].threads = ranks[1].threads = 4;
       },
       {"ranks 0 and 1 have 8 threads on 6 cores of node1 (0-5)"}},
      {"a rank in the mask of another",
       [](auto& ranks) {
         bind(ranks[1], "0-1");
         ranks[1].threads = 2;
       },
       {"ranks 0 and 1 have 10 threads on 8 cores of node1 (0-7)"}},
      {"more ranks than cores, asked for",
       [](auto& ranks) {
         for (const int r : {0, 1}) {
           bind(ranks[r], "0-15");
           ranks[r].threads = 16;
         }
       },
       {}},
      {"a core each, of a node that has many",
       [](auto& ranks) {
         bind(ranks[0], "0");
         bind(ranks[1], "1");
         ranks[0].threads = ranks[1].threads = 1;
       },
       {"ranks 0 and 1 are bound to one core each, and 14 of 16 cores of node1 are idle", "PE=8"}},
      {"a core each, as the job asked",
       [](auto& ranks) {
         bind(ranks[0], "0");
         bind(ranks[1], "1");
         for (const int r : {0, 1}) {
           ranks[r].threads = 1;
           ranks[r].job_cores = 2;
         }
       },
       {}},
      {"a quota",
       [](auto& ranks) { ranks[2].cpu_quota = ranks[3].cpu_quota = 8.0; },
       {"ranks 2 and 3 have 16 threads, but the cgroup on node2 has a quota of 8 CPUs"}},
      {"eight jobs on a node",
       [](auto& ranks) {
         ranks.resize(1);
         bind(ranks[0], "0-15");
         ranks[0].threads = 16;
         ranks[0].others = 112;
       },
       {"rank 0 has 16 threads on node1, which has 16 cores, and 112 threads of other processes",
        "run.threads"}},
      {"a shell beside a run", [](auto& ranks) { ranks[0].others = 2; }, {}},
      {"a GPU far from its mask",
       [](auto& ranks) { ranks[1].gpu_far_from = "0-7"; },
       {"rank 1 on node1 is bound to the cores 8-15, but its GPU 0000:01:00.0 is near the "
        "processors 0-7",
        "--distribution"}},
      {"--gpus-per-task",
       [](auto& ranks) {
         for (const int r : {2, 3}) {
           ranks[r].gpus_seen = 1;
           ranks[r].gpus_per_task = "1";
         }
       },
       {"ranks 2 and 3 on node2 see one GPU each (SLURM_GPUS_PER_TASK=1)", "--gpu-bind=none"}},
      {"one GPU each without Slurm",
       [](auto& ranks) { ranks[2].gpus_seen = ranks[3].gpus_seen = 1; },
       {"ranks 2 and 3 on node2 see one GPU each: a GPU"}},
      {"a node of one GPU",
       [](auto& ranks) {
         ranks.erase(ranks.begin() + 3);
         ranks[2].gpus_seen = 1;
       },
       {}},
      {"a container's own libfabric",
       [](auto& ranks) {
         for (Placement& rank : ranks) {
           rank.libraries = {{"libfabric", "/usr/lib/libfabric.so.1"}};
         }
       },
       {"node1 has cxi0, but rank 0 loaded no provider", "(libfabric: /usr/lib/libfabric.so.1)",
        "bind the host's libfabric"}},
      {"the same on one node, which needs no network",
       [](auto& ranks) {
         ranks.resize(2);
         ranks[0].libraries = ranks[1].libraries = {};
       },
       {}},
      {"another MPI on a node",
       [](auto& ranks) { ranks[3].libraries[0].version = "/usr/lib/libmpi.so.40"; },
       {"rank 3 on node2 has MPI /usr/lib/libmpi.so.40 and rank 0 on node1 /opt/mpi"}},
      {"components of MPI that a node does without",
       [](auto& ranks) {
         ranks[3].libraries.push_back({"transport", "btl_tcp"});
       },
       {}}};
  for (const Habit& habit : habits) {
    SCOPED_TRACE(habit.name);
    std::vector<Placement> ranks = good_ranks();
    habit.change(ranks);
    const std::vector<std::string> found = problems_of(ranks);
    ASSERT_EQ(found.size(), habit.said.empty() ? 0U : 1U) << testing::PrintToString(found);
    for (const char* const part : habit.said) {
      EXPECT_THAT(found.front(), HasSubstr(part));
    }
  }
}

TEST(Placement, SaysOnceWhatIsAlikeOnManyRanks) {
  std::vector<Placement> ranks = good_ranks();
  for (Placement& rank : ranks) {
    rank.gpu_far_from = "0";
  }
  EXPECT_THAT(problems_of(ranks),
              ElementsAre(AllOf(HasSubstr("rank 0 on node1"), HasSubstr(" (3 more like this)"))));
}

TEST(Placement, NamesRanksThatShareCoresWithoutBindingWhereAsked) {
  std::vector<Placement> ranks = good_ranks();
  ranks.resize(2);
  for (Placement& rank : ranks) {
    bind(rank, "0-15");
    rank.threads = 16;
  }
  EXPECT_THAT(placement_problems(ranks, Oversubscription::kReported),
              ElementsAre(HasSubstr("ranks 0 and 1 have 32 threads on 16 cores of node1 (0-15)")));
}

TEST(Placement, TravelsAsText) {
  Placement rank = good_ranks()[1];
  rank.gpu_far_from = "0-7";
  rank.gpus_per_task = "1";
  rank.others = 3;
  EXPECT_EQ(nlohmann::json::parse(nlohmann::json(rank).dump()).get<Placement>(), rank);
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(Placement, KnowsTheLibrariesOfMessages) {
  const TemporaryDirectory directory;
  const auto line = [](const std::string& file) {
    return "7f00-7f01 r-xp 00000000 fe:01 1234   " + file + "\n";
  };
  write(directory / "self/maps",
        "7f00-7f01 rw-p 00000000 00:00 0 \n" + line("[heap]") + line("/lib/libc.so.6") +
            line("/usr/lib/libmpi_cxx.so.40") + line("/usr/lib/libmpi.so.40.30.4") +
            line("/usr/lib/libmpi.so.40.30.4") + line("/usr/lib/openmpi/mca_pml_ob1.so") +
            line("/usr/lib/openmpi/mca_btl_tcp.so") + line("/opt/libfabric/lib/libfabric.so.1.2") +
            line("/opt/libfabric/lib/libfabric/libverbs-fi.so") + line("/usr/lib/libcxi.so.1") +
            line("/opt/nccl/libnccl.so.2.28.3") + line("/opt/aws/lib/libnccl-net.so") +
            line("/usr/lib/libpmix.so.2"));
  const std::vector<VersionFact> expected{
      {"MPI", "/usr/lib/libmpi.so.40.30.4"},
      {"NCCL", "/opt/nccl/libnccl.so.2.28.3"},
      {"NCCL plug-in", "/opt/aws/lib/libnccl-net.so"},
      {"PMIx", "/usr/lib/libpmix.so.2"},
      {"libfabric", "/opt/libfabric/lib/libfabric.so.1.2"},
      {"provider", "/opt/libfabric/lib/libfabric/libverbs-fi.so, /usr/lib/libcxi.so.1"},
      {"transport", "btl_tcp, pml_ob1"}};
  EXPECT_EQ(loaded_libraries(directory / "self/maps"), expected);
  EXPECT_THAT(libraries_text(expected), AllOf(HasSubstr("MPI /usr/lib/libmpi.so.40.30.4; "),
                                              HasSubstr("; transport btl_tcp, pml_ob1")));
  EXPECT_EQ(libraries_text({}), "none");
}

TEST(Placement, IsOfTheSystemAndTheLaunch) {
  const TemporaryDirectory directory;
  const SystemFiles files{.proc = directory / "proc", .sys = directory / "sys"};
  write(files.proc / "loadavg", "9.00 8.00 7.00 113/900 4242\n");
  write(files.sys / "class/infiniband/mlx5_0/node_type", "1\n");
  write(files.sys / "class/cxi/cxi0/name", "x\n");
  ::setenv("SLURM_GPUS_PER_TASK", "1", 1);
  ::setenv("SLURM_CPUS_ON_NODE", "1", 1);
  Placement rank = find_placement(2, 8, files);
  ::unsetenv("SLURM_GPUS_PER_TASK");
  ::unsetenv("SLURM_CPUS_ON_NODE");
  EXPECT_EQ(rank.threads, 8);
  EXPECT_EQ(rank.gpus_per_task, "1");
  EXPECT_EQ(rank.job_cores, 1);
  EXPECT_THAT(rank.fabric, ElementsAre("mlx5_0", "cxi0"));
  // Of a process that is bound to some cores the others are not asked about.
  EXPECT_THAT(rank.others, testing::AnyOf(111, 0));

  const std::set<std::int64_t> own = core_numbers(bound_cores().processors);
  const auto far_from = [&](const std::string& list) {
    write(files.sys / "bus/pci/devices/0000:c1:00.0/local_cpulist", list + "\n");
    place_gpu(rank, {.bus_id = "0000:C1:00.0", .uuid = "GPU-1"}, 4, files);
    return std::exchange(rank.gpu_far_from, "");
  };
  EXPECT_EQ(far_from(core_list(own)), "");
  EXPECT_EQ(far_from(fmt::format("{}-{}", *own.rbegin() + 1, *own.rbegin() + 8)),
            fmt::format("{}-{}", *own.rbegin() + 1, *own.rbegin() + 8));
  EXPECT_EQ(far_from(""), "");
  EXPECT_EQ(rank.gpus_seen, 4);
  EXPECT_EQ(rank.gpu_bus_id, "0000:C1:00.0");
}

TEST(CoreList, IsThatOfItsNumbers) {
  for (const char* const list : {"", "0", "0-3", "1,3-5,9"}) {
    EXPECT_EQ(core_list(core_numbers(list)), list);
  }
  EXPECT_EQ(core_list(core_numbers("2,0-1,x,7-\n")), "0-2");
}

TEST(TemporaryDirectory, MustBeThereAndHaveRoom) {
  const TemporaryDirectory directory;
  require_temporary_directory(directory.path());
  ::setenv("TMPDIR", directory.path().c_str(), 1);
  EXPECT_EQ(temporary_directory(), directory.path());
  ::unsetenv("TMPDIR");
  EXPECT_EQ(temporary_directory(), "/tmp");
  require_temporary_directory(directory / "a/new");
  EXPECT_TRUE(std::filesystem::is_directory(directory / "a/new"));
  EXPECT_THAT(
      strata::test::error_of([] { require_temporary_directory("/proc/none"); }, ExitCode::kUsage),
      AllOf(HasSubstr("/proc/none on "), HasSubstr("No such file or directory"),
            HasSubstr("set TMPDIR")));
  EXPECT_THAT(strata::test::error_of(
                  [&] { require_temporary_directory(directory.path(), std::int64_t{1} << 60); },
                  ExitCode::kPeer),
              AllOf(HasSubstr("left, and MPI needs"), HasSubstr("delete files there")));
}

}  // namespace
}  // namespace strata::app::placement_test
