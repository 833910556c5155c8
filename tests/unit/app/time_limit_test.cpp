#include "environment/time_limit.hpp"

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "../io/data_files.hpp"

namespace strata::app::test::time_limit_test {
namespace {

/// A time as squeue prints it.
std::string local_time(std::time_t time) {
  char text[32];
  std::tm parts{};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", localtime_r(&time, &parts));
  return text;
}

TEST(TimeLimit, OfASqueueTime) {
  EXPECT_NEAR(seconds_until(local_time(std::time(nullptr) + 600)).value(), 600.0, 5.0);
  for (const std::string text : {"NONE", "", "2026-03-01", "2001-01-01T00:00:00"}) {
    EXPECT_EQ(seconds_until(text), std::nullopt) << text;
  }
}

TEST(TimeLimit, OfTheAllocation) {
  unsetenv("SLURM_JOB_END_TIME");
  unsetenv("SLURM_JOB_ID");
  EXPECT_EQ(allocation_seconds_left(), std::nullopt);

  const io::test::TemporaryDirectory directory;
  const std::filesystem::path squeue = directory / "squeue";
  std::ofstream(squeue) << "#!/bin/sh\n[ \"$*\" = '-h -j 42 -o %e' ] && echo "
                        << local_time(std::time(nullptr) + 900) << "\n";
  std::filesystem::permissions(squeue, std::filesystem::perms::owner_all);
  const std::string path = squeue.parent_path().string() + ":" + std::getenv("PATH");
  setenv("PATH", path.c_str(), 1);
  setenv("SLURM_JOB_ID", "42", 1);
  EXPECT_NEAR(allocation_seconds_left().value_or(0.0), 900.0, 5.0);
  setenv("SLURM_JOB_ID", "42; echo 2100-01-01T00:00:00", 1);
  EXPECT_EQ(allocation_seconds_left(), std::nullopt);

  setenv("SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 60).c_str(), 1);
  EXPECT_NEAR(allocation_seconds_left().value_or(0.0), 60.0, 5.0);
  unsetenv("SLURM_JOB_END_TIME");
  unsetenv("SLURM_JOB_ID");
}

}  // namespace
}  // namespace strata::app::test::time_limit_test
