#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/comm/agree.hpp"
#include "strata/comm/groups.hpp"
#include "strata/comm/lone_rank.hpp"
#include "strata/comm/mpi_library.hpp"
#include "strata/comm/nccl.hpp"
#include "strata/comm/rotated_group.hpp"
#include "strata/core/error.hpp"

#include "comm_cases.hpp"
#include "error_of.hpp"
#include "in_process.hpp"

namespace strata::comm::test::comm_test {
namespace {

using testing::UnorderedElementsAre;

class ThreadRanks : public testing::TestWithParam<std::tuple<CommCase, std::int64_t>> {};

TEST_P(ThreadRanks, Pass) {
  const auto& [comm_case, ranks] = GetParam();
  run_in_process_ranks(ranks, [&, &body = comm_case](Communicator& world) {
    const std::string report = run_case(body, world);
    if (world.rank() == 0) {
      EXPECT_EQ(report, "");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, ThreadRanks,
                         testing::Combine(testing::ValuesIn(comm_and_window_cases()),
                                          testing::Values(1, 2, 3, 4, 6)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_on_" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST(RotatedGroup, PassesTheCasesOfEveryCommunicator) {
  // It refuses a reduce-scatter. Texts hold its own name, or the group's name and ranks.
  const std::set<std::string> others{"exchanges_are_one_request", "unequal_plans_are_named",
                                     "the_library_sums", "a_wait_times_out"};
  for (const CommCase& comm_case : comm_cases()) {
    if (others.contains(comm_case.name)) {
      continue;
    }
    for (const auto& [ranks, shift] : {std::pair{1, 1}, {2, 1}, {3, 2}, {4, 5}}) {
      run_in_process_ranks(ranks, [&, shift = shift](Communicator& world) {
        device::Stream stream(device::Device::cpu());
        RotatedGroup rotated(world, shift, stream);
        EXPECT_EQ(rotated.rank(), (world.rank() + shift) % world.size());
        const std::string report = run_case(comm_case, rotated);
        if (world.rank() == 0) {
          EXPECT_EQ(report, "");
        }
      });
    }
  }
}

TEST(LoneRank, PassesTheCasesOfEveryCommunicator) {
  for (const CommCase& comm_case : comm_and_window_cases()) {
    LoneRank world("world");
    EXPECT_EQ(run_case(comm_case, world), "") << comm_case.name;
  }
}

TEST(WaitMark, InsideAnotherOneMarksNothing) {
  Activity activity;
  {
    const WaitMark outer(&activity, WaitKind::kMessage, "receive");
    { const WaitMark inner(&activity, WaitKind::kLibraryCall, "reach the memory of rank 1"); }
    EXPECT_EQ(activity.wait_state().what, "receive");
  }
  EXPECT_EQ(activity.wait_state().what, "");
}

TEST(LoneRank, ReachesTheWordsOfItsWindow) {
  LoneRank world("world");
  const std::unique_ptr<Window> window = world.make_window(3);
  EXPECT_EQ(window->fetch_add(0, 1, 7), 0);
  EXPECT_EQ(window->fetch_add(0, 1, 1), 7);
  window->store(0, 2, 5);
  std::vector<Window::Word> words(3);
  window->get(0, 0, words);
  EXPECT_THAT(words, testing::ElementsAre(0, 8, 5));
  EXPECT_EQ(window->load_own(1), 8);
  window->close();
}

TEST(Launch, IsReadFromTheEnvironment) {
  using Variables = std::vector<std::pair<const char*, const char*>>;
  struct Case {
    Variables variables;
    std::int64_t rank;
    std::int64_t ranks;
    bool by_launcher = true;
  };
  for (const auto& [variables, rank, ranks, by_launcher] : std::vector<Case>{
           {{}, 0, 1, false},
           {{{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}}, 3, 4},
           {{{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}, 1, 2},
           // The script of a job of 4 tasks; srun of 4 tasks and of one; an interactive step.
           {{{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}, 0, 1, false},
           {{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}, {"PMIX_RANK", "2"}}, 2, 4},
           {{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "4"}, {"PMIX_RANK", "0"}}, 0, 1},
           // mpirun in an interactive step, and on a node where one task of srun starts its ranks.
           {{{"OMPI_COMM_WORLD_SIZE", "2"}, {"SLURM_STEP_NUM_TASKS", "1"}}, 0, 2},
           {{{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "3"}}, 0, 1},
           {{{"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_RANK", "1"}, {"PMIX_RANK", "1"}}, 1, 2},
           // A launcher that does not say how many there are.
           {{{"PMIX_RANK", "1"}}, 1, 0},
           {{{"PALS_RANKID", "0"}}, 0, 0}}) {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                             "MV2_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "PMIX_RANK",
                             "PALS_RANKID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS",
                             "SLURM_TASK_PID", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"}) {
      ::unsetenv(name);
    }
    for (const auto& [name, value] : variables) {
      ::setenv(name, value, 1);
    }
    const Launch launch = launch_in_environment();
    EXPECT_EQ(launch.rank, rank) << testing::PrintToString(variables);
    EXPECT_EQ(launch.ranks, ranks) << testing::PrintToString(variables);
    EXPECT_EQ(launch.by_launcher, by_launcher) << testing::PrintToString(variables);
  }
}

TEST(LaunchProgram, EachLibraryHasItsOwn) {
  EXPECT_EQ(launch_program("Another MPI 1.0"), nullptr);
  for (const std::string version : {"4", "5", "6"}) {
    const LaunchProgram* const program = launch_program("Open MPI v" + version + ".0.2rc1");
    ASSERT_NE(program, nullptr) << version;
    EXPECT_EQ(program->version, "mpirun (Open MPI) " + version + ".");
    EXPECT_EQ(program->buffers_partial_lines, version != "4");
  }
  ASSERT_NE(launch_program(), nullptr) << mpi_library_text();
  const LaunchProgram* const open_mpi = launch_program("Open MPI v4.1.4");
  const LaunchProgram* const mpich = launch_program("MPICH Version: 4.0.2");
  ASSERT_NE(open_mpi, nullptr);
  ASSERT_NE(mpich, nullptr);
  const LaunchSize size{.ranks = 3, .hostfile = "hosts", .hosts = {"a  slots=2", "b"}};
  EXPECT_THAT(open_mpi->options(size), testing::IsSupersetOf({"3", "--hostfile", "hosts"}));
  EXPECT_THAT(mpich->options(size),
              testing::ElementsAre("-hosts", "a:2,b:1", "-n", "3", "-bind-to", "none"));
  EXPECT_THAT(mpich->options({.ranks = 2, .hostfile = {}, .hosts = {}}),
              testing::ElementsAre("-hosts", "localhost", "-n", "2", "-bind-to", "none"));
  for (const auto& [code, stop, own, hydras] :
       std::vector<std::tuple<int, StopAsked, int, int>>{{0, StopAsked::kNo, 0, 0},
                                                         {0, StopAsked::kYes, 0, 75},
                                                         {75, StopAsked::kYes, 75, 75},
                                                         {5, StopAsked::kNo, 5, 5},
                                                         {9, StopAsked::kNo, 9, 137}}) {
    EXPECT_EQ(open_mpi->exit_code(code, stop), own);
    EXPECT_EQ(mpich->exit_code(code, stop), hydras);
  }
}

TEST(RunThreadRanks, ThrowsTheErrorOfTheRankThatFailedFirstAndEndsTheOthersWaits) {
  const std::string text = strata::test::error_of(
      [] {
        run_in_process_ranks(3, [](Communicator& world) {
          if (world.rank() == 1) {
            fail(ExitCode::kData, "the disk is gone");
          }
          world.barrier();
        });
      },
      ExitCode::kData);
  EXPECT_EQ(text, "the disk is gone");
}

TEST(Agree, TellsTheOwnFailureWhereTheOthersDoNotCome) {
  const std::string text = strata::test::error_of(
      [] {
        run_in_process_ranks(2, [](Communicator& world) {
          if (world.rank() == 0) {
            world.set_timeout({.seconds = 0.2});
            agree(world, [] { fail(ExitCode::kData, "the disk is gone"); });
          }
        });
      },
      ExitCode::kData);
  EXPECT_EQ(text, "the disk is gone");
}

TEST(Communicator, RefusesMessagesToUnknownRanksAndToItself) {
  run_in_process_ranks(2, [](Communicator& world) {
    std::int64_t value = 0;
    const auto payload = payload_of(std::span(&value, 1));
    EXPECT_THROW(static_cast<void>(world.send(payload, world.rank(), Tag::kSetup)),
                 std::logic_error);
    EXPECT_THROW(static_cast<void>(world.receive(payload, 2, Tag::kSetup)), std::logic_error);
    EXPECT_THROW(world.all_gather(payload, payload), std::logic_error);
  });
}

TEST(NcclBlocks, OfThreeGroupsAndTheRoutesLeaveAMultiprocessor) {
  struct Gpu {
    std::int64_t multiprocessors;
    std::int64_t blocks;
  };
  // The least, a large slice of an H100, L4, the least for the most, H100.
  for (const Gpu& gpu : {Gpu{20, 1}, {60, 14}, {58, 13}, {65, 16}, {132, 16}}) {
    EXPECT_EQ(group_blocks(gpu.multiprocessors), gpu.blocks) << gpu.multiprocessors;
  }
  EXPECT_THROW(static_cast<void>(group_blocks(kLeastMultiprocessors - 1)), std::logic_error);
}

TEST(PipelineRoutes, AreOneForEachDirectionTagAndChunk) {
  const auto routes_of = [](std::vector<std::int64_t> stages) { return pipeline_routes(stages); };
  EXPECT_TRUE(routes_of({0}).empty());
  EXPECT_EQ(routes_of({0, 1}), (std::vector<Route>{{0, 1, Tag::kActivation},
                                                   {1, 0, Tag::kGradient},
                                                   {1, 0, Tag::kReduce},
                                                   {0, 1, Tag::kGather}}));
  // As a loop, and as a V.
  EXPECT_THAT(routes_of({0, 1, 0, 1}),
              UnorderedElementsAre(
                  Route{0, 1, Tag::kActivation}, Route{1, 0, tag_of(Tag::kActivation, 1)},
                  Route{0, 1, tag_of(Tag::kActivation, 1)}, Route{1, 0, tag_of(Tag::kGradient, 1)},
                  Route{0, 1, tag_of(Tag::kGradient, 0)}, Route{1, 0, Tag::kGradient},
                  Route{1, 0, Tag::kReduce}, Route{0, 1, Tag::kGather}));
  EXPECT_THAT(
      routes_of({0, 1, 1, 0}),
      UnorderedElementsAre(Route{0, 1, Tag::kActivation}, Route{1, 0, tag_of(Tag::kActivation, 1)},
                           Route{0, 1, tag_of(Tag::kGradient, 1)}, Route{1, 0, Tag::kGradient}));
  for (const std::int64_t stages : {3, 4, 7}) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(stages));
    std::iota(all.begin(), all.end(), 0);
    const std::vector<Route> routes = pipeline_routes(all);
    EXPECT_EQ(std::ssize(routes), 2 * (stages - 1) + 2);
    for (std::int64_t s = 0; s + 1 < stages; ++s) {
      EXPECT_EQ(std::count(routes.begin(), routes.end(), Route{s, s + 1, Tag::kActivation}), 1);
      EXPECT_EQ(std::count(routes.begin(), routes.end(), Route{s + 1, s, Tag::kGradient}), 1);
    }
    EXPECT_EQ(std::count(routes.begin(), routes.end(), Route{stages - 1, 0, Tag::kReduce}), 1);
    EXPECT_EQ(std::count(routes.begin(), routes.end(), Route{0, stages - 1, Tag::kGather}), 1);
  }
}

}  // namespace
}  // namespace strata::comm::test::comm_test
