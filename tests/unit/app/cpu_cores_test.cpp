#include "environment/cpu_cores.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

#include "strata/core/cgroup.hpp"

#include "../io/data_files.hpp"

namespace strata::app::cpu_cores_test {
namespace {

using io::test::TemporaryDirectory;

/// This process bound to CPUs 0 and 1, in a made-up topology.
class CoresTest : public testing::Test {
 protected:
  void SetUp() override {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t two;
    CPU_ZERO(&two);
    CPU_SET(0, &two);
    CPU_SET(1, &two);
    if (sched_setaffinity(0, sizeof two, &two) != 0 ||
        sched_getaffinity(0, sizeof two, &two) != 0 || CPU_COUNT(&two) != 2) {
      GTEST_SKIP() << "needs CPUs 0 and 1";
    }
    ::setenv("HWLOC_THISSYSTEM", "1", 1);
  }
  void TearDown() override {
    sched_setaffinity(0, sizeof before_, &before_);
    ::unsetenv("HWLOC_THISSYSTEM");
    ::unsetenv("HWLOC_SYNTHETIC");
  }

 private:
  cpu_set_t before_{};
};

TEST_F(CoresTest, AreThoseWithAnyOfTheirThreads) {
  struct Case {
    const char* topology;
    const char* cores;
    int threads;
  };
  for (const Case& one : {Case{"core:2 pu:2(indexes=0,2,1,3)", "0-1", 2},  // a thread of each core
                          Case{"core:2 pu:2", "0", 1},                     // both threads of one
                          Case{"core:64 pu:2(indexes=64*2:1*64)", "0-1", 2},
                          Case{"core:3 pu:4(indexes=0,3,6,9,1,4,7,10,2,5,8,11)", "0-1", 2},
                          Case{"core:2 pu:1", "0-1", 2}, Case{"core:1 pu:4", "0", 1},
                          Case{"package:2 core:1 pu:2(indexes=0,2,1,3)", "0-1", 2}}) {
    SCOPED_TRACE(one.topology);
    ::setenv("HWLOC_SYNTHETIC", one.topology, 1);
    EXPECT_EQ(bound_cores().text, one.cores);
    EXPECT_EQ(bound_cores().count, one.threads);
    EXPECT_EQ(default_threads(1, std::nullopt), one.threads);
  }
}

TEST_F(CoresTest, AQuotaBoundsTheThreads) {
  ::setenv("HWLOC_SYNTHETIC", "core:2 pu:2(indexes=0,2,1,3)", 1);
  for (const auto& [quota, ranks, threads] :
       {std::tuple(0.5, 1, 1), {1.99, 1, 1}, {2.0, 1, 2}, {64.0, 1, 2}, {2.0, 2, 1}, {0.5, 2, 1}}) {
    EXPECT_EQ(default_threads(ranks, quota), threads) << quota << " CPUs for " << ranks << " ranks";
  }
}

TEST(CpuQuota, IsTheLeastOfTheGroupAndThoseAbove) {
  using Files = std::vector<std::pair<std::string, std::string>>;
  struct Case {
    const char* membership;
    Files files;
    std::optional<double> quota;
  };
  const std::vector<Case> cases{
      {"0::/a/b\n", {{"a/b/cpu.max", "50000 100000\n"}}, 0.5},
      {"0::/a/b\n", {{"a/b/cpu.max", "max 100000\n"}}, std::nullopt},
      {"0::/a/b\n", {{"a/b/cpu.max", "max 100000\n"}, {"a/cpu.max", "250000 100000\n"}}, 2.5},
      {"0::/a/b\n", {{"a/b/cpu.max", "400000 100000\n"}, {"a/cpu.max", "3000 2000\n"}}, 1.5},
      {"0::/\n", {{"cpu.max", "150000 50000\n"}}, 3.0},            // in a namespace of its own
      {"0::/host/path\n", {{"cpu.max", "100000 100000\n"}}, 1.0},  // seen from a container
      {"0::/../../x\n", {{"cpu.max", "100000 100000\n"}}, 1.0},
      {"0::/a/other\n", {{"a/b/cpu.max", "50000 100000\n"}}, std::nullopt},
      {"4:memory:/a\n3:cpu,cpuacct:/a\n",
       {{"cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n"},
        {"cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"}},
       0.5},
      {"3:cpu,cpuacct:/a/b\n",
       {{"cpu/a/b/cpu.cfs_quota_us", "-1\n"},
        {"cpu/a/b/cpu.cfs_period_us", "100000\n"},
        {"cpu/a/cpu.cfs_quota_us", "350000\n"},
        {"cpu/a/cpu.cfs_period_us", "100000\n"}},
       3.5},
      {"3:cpuset:/a\n0::/\n",
       {{"cpuset/a/cpu.cfs_quota_us", "1\n"}, {"cpuset/a/cpu.cfs_period_us", "1\n"}},
       std::nullopt},
      {"1:name=systemd:/x\n2:cpu:/a\n0::/x\n",
       {{"cpu/a/cpu.cfs_quota_us", "200000\n"},
        {"cpu/a/cpu.cfs_period_us", "100000\n"},
        {"unified/x/cpu.max", "100000 100000\n"}},
       1.0},
      {"0::/a\n", {{"a/cpu.max", "0 100000\n"}}, std::nullopt},
      {"0::/a\n", {{"a/cpu.max", "x\n"}}, std::nullopt},
      {"", {}, std::nullopt}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.membership);
    const TemporaryDirectory directory;
    std::ofstream(directory / "membership") << one.membership;
    for (const auto& [name, text] : one.files) {
      const std::filesystem::path file = directory.path() / "root" / name;
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file) << text;
    }
    EXPECT_EQ(cpu_quota(directory / "membership", directory / "root"), one.quota);
  }
  EXPECT_EQ(cpu_quota("/none", "/none"), std::nullopt);
}

TEST(HostMemory, IsWhatTheGroupAndThoseAboveLeave) {
  const HostMemory host = host_memory("/none", "/none");
  ASSERT_GE(host.all, host.available);
  ASSERT_GT(host.available, 100000);
  struct Case {
    const char* membership;
    std::vector<std::pair<std::string, std::string>> files;
    std::int64_t all;
    std::int64_t available;
  };
  const std::vector<Case> cases{
      {"0::/a/b\n",
       {{"a/b/memory.max", "max\n"},
        {"a/b/memory.current", "999\n"},
        {"a/memory.max", "90000\n"},
        {"a/memory.current", "50000\n"},
        {"a/memory.stat", "anon 10000\ninactive_file 20000\nactive_file 10000\n"}},
       90000,
       70000},
      {"3:memory:/host/path\n",
       {{"memory/memory.limit_in_bytes", "80000\n"},
        {"memory/memory.usage_in_bytes", "50000\n"},
        {"memory/memory.stat", "inactive_file 1\ntotal_inactive_file 20000\n"}},
       80000,
       50000},
      {"0::/a\n", {{"a/memory.max", "5\n"}, {"a/memory.current", "9\n"}}, 5, 1},
      {"3:cpu:/a\n", {{"cpu/a/memory.limit_in_bytes", "5\n"}}, host.all, -1},
      {"3:memory:/\n", {{"memory/memory.limit_in_bytes", "9223372036854771712\n"}}, host.all, -1}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.membership);
    const TemporaryDirectory directory;
    std::ofstream(directory / "membership") << one.membership;
    for (const auto& [name, text] : one.files) {
      const std::filesystem::path file = directory.path() / "root" / name;
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file) << text;
    }
    const HostMemory memory = host_memory(directory / "membership", directory / "root");
    EXPECT_EQ(memory.all, one.all);
    EXPECT_TRUE(memory.available == one.available || one.available < 0) << memory.available;
  }
}

}  // namespace
}  // namespace strata::app::cpu_cores_test
