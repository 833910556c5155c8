#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "strata/core/random.hpp"
#include "strata/io/checkpoint.hpp"

#include "checkpoint_cases.hpp"

namespace strata::io::checkpoint_directory_test {
namespace {

namespace fs = std::filesystem;
using test::Model;
using test::TemporaryDirectory;
using test::write_checkpoint;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

std::vector<std::int64_t> steps_in(const fs::path& root) {
  std::vector<std::int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(root)) {
    steps.push_back(entry.step);
  }
  return steps;
}

std::vector<std::string> names_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

float first_weight(const fs::path& directory) {
  std::vector<float> out(1);
  Checkpoint::open(directory).read("weights/dense1.bias", Shape{7}, {}, {.begin = 0, .end = 1},
                                   TensorView(std::span<float>(out), Shape{1}));
  return out[0];
}

TEST(CheckpointDirectory, ListsNewestFirst) {
  const TemporaryDirectory scratch;
  EXPECT_THAT(list_checkpoints(scratch.path() / "none"), IsEmpty());
  for (const std::int64_t step : {20, 100000000, 3}) {
    write_checkpoint(scratch.path(), step, 1);
  }
  fs::create_directory(scratch.path() / "step-7");
  fs::create_directory(scratch.path() / "step-0000000x");
  std::ofstream(scratch.path() / "step-00000009") << "a file";
  EXPECT_THAT(list_checkpoints(scratch.path()),
              ElementsAre(CheckpointEntry{100000000, scratch.path() / "step-100000000"},
                          CheckpointEntry{20, scratch.path() / "step-00000020"},
                          CheckpointEntry{3, scratch.path() / "step-00000003"}));
}

TEST(CheckpointDirectory, PartialOnesAreIgnoredAndReplaced) {
  const TemporaryDirectory scratch;
  const Model model;
  write_checkpoint(scratch.path(), 10, 1);
  const fs::path partial = begin_checkpoint(scratch.path(), 20);
  EXPECT_THAT(partial.filename().string(),
              ::testing::MatchesRegex("\\.step-00000020\\.[0-9a-f]+\\.partial"));
  // As earlier versions named it.
  fs::create_directory(scratch.path() / ".step-00000020.partial");
  (void)write_part(partial, 0, model.slices_of(0, 2));
  EXPECT_THAT(steps_in(scratch.path()), ElementsAre(10));
  std::ofstream(partial / "part-00009.h5") << "left by a killed run";
  const fs::path directory = write_checkpoint(scratch.path(), 20, 1);
  EXPECT_THAT(steps_in(scratch.path()), ElementsAre(20, 10));
  EXPECT_THAT(names_in(directory),
              UnorderedElementsAre("master.h5", "master.manifest", "part-00000.h5"));
  EXPECT_THAT(names_in(scratch.path()), UnorderedElementsAre("step-00000010", "step-00000020"));
}

TEST(CheckpointDirectory, PartsOfTwoSavesNeverMeet) {
  const TemporaryDirectory scratch;
  const Model model;
  std::vector<PartRecord> records;
  for (std::int64_t part = 0; part < 2; ++part) {
    const fs::path root = scratch / fmt::format("run-{}", part);
    records.push_back(write_part(begin_checkpoint(root, 20), part, model.slices_of(part, 2)));
  }
  EXPECT_THAT(
      test::checkpoint_error([&] { commit_checkpoint(scratch / "run-0", 20, records, {}); }),
      ::testing::HasSubstr("part part-00001.h5 belongs to save " + records[1].save));
}

TEST(CheckpointDirectory, SameStepIsReplaced) {
  const TemporaryDirectory scratch;
  write_checkpoint(scratch.path(), 10, 2);
  const fs::path directory = write_checkpoint(scratch.path(), 10, 1, Model(0.5));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000010"));
  EXPECT_EQ(first_weight(directory), 3000.5F);
}

TEST(CheckpointDirectory, KilledWhileReplacingTheEarlierOneIsStillFound) {
  const TemporaryDirectory scratch;
  write_checkpoint(scratch.path(), 5, 1);
  write_checkpoint(scratch.path(), 10, 2);
  fs::rename(scratch.path() / "step-00000010", scratch.path() / ".step-00000010.replaced");
  const std::vector<CheckpointEntry> entries = list_checkpoints(scratch.path());
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].step, 10);
  EXPECT_EQ(first_weight(entries[0].directory), 3000.125F);
  // Writing the step again takes its place.
  fs::copy(entries[0].directory, scratch.path() / "copy");
  write_checkpoint(scratch.path(), 10, 1, Model(0.5));
  EXPECT_THAT(names_in(scratch.path()),
              UnorderedElementsAre("step-00000005", "step-00000010", "copy"));
  // With both there, the visible one counts.
  fs::rename(scratch.path() / "copy", scratch.path() / ".step-00000010.replaced");
  EXPECT_EQ(first_weight(list_checkpoints(scratch.path())[0].directory), 3000.5F);
  write_checkpoint(scratch.path(), 10, 1, Model(0.75));
  EXPECT_THAT(names_in(scratch.path()), UnorderedElementsAre("step-00000005", "step-00000010"));
  EXPECT_EQ(first_weight(scratch.path() / "step-00000010"), 3000.75F);
}

TEST(CheckpointDirectory, PruneKeepsTheNewest) {
  const TemporaryDirectory scratch;
  for (const std::int64_t step : {10, 20, 30, 40}) {
    write_checkpoint(scratch.path(), step, 1);
  }
  prune_checkpoints(scratch.path(), 40, 2);
  EXPECT_THAT(names_in(scratch.path()), UnorderedElementsAre("step-00000030", "step-00000040"));
  prune_checkpoints(scratch.path(), 40, 2);
  EXPECT_THAT(names_in(scratch.path()), UnorderedElementsAre("step-00000030", "step-00000040"));
  prune_checkpoints(scratch.path() / "none", 40, 1);
  EXPECT_THROW(prune_checkpoints(scratch.path(), 40, 0), std::logic_error);
}

TEST(CheckpointDirectory, PruneKeepsMultiplesOfKeepEvery) {
  const TemporaryDirectory scratch;
  for (const std::int64_t step : {7, 10, 15, 20, 25}) {
    write_checkpoint(scratch.path(), step, 1);
  }
  prune_checkpoints(scratch.path(), 25, 1, 10);
  EXPECT_THAT(names_in(scratch.path()),
              UnorderedElementsAre("step-00000010", "step-00000020", "step-00000025"));
}

TEST(CheckpointDirectory, PruneKeepsTheBest) {
  struct Case {
    std::int64_t best;
    std::vector<std::string> left;
  };
  for (const Case& one :
       {Case{10, {"step-00000010", "step-00000040"}}, Case{30, {"step-00000030", "step-00000040"}},
        Case{40, {"step-00000040"}},     // is the newest
        Case{35, {"step-00000040"}},     // is not there
        Case{-1, {"step-00000040"}}}) {  // none
    const TemporaryDirectory scratch;
    for (const std::int64_t step : {10, 20, 30, 40}) {
      write_checkpoint(scratch.path(), step, 1);
    }
    prune_checkpoints(scratch.path(), 40, 1, 0, one.best);
    EXPECT_THAT(names_in(scratch.path()), UnorderedElementsAreArray(one.left)) << one.best;
  }
}

TEST(CheckpointDirectory, PruneLeavesLaterStepsOfAGivenUpRun) {
  const TemporaryDirectory scratch;
  for (const std::int64_t step : {10, 20, 25, 30, 40}) {
    write_checkpoint(scratch.path(), step, 1);
  }
  prune_checkpoints(scratch.path(), 25, 1);
  EXPECT_THAT(names_in(scratch.path()),
              UnorderedElementsAre("step-00000025", "step-00000030", "step-00000040"));
}

TEST(CheckpointDirectory, PruneClearsWhatKilledRunsLeft) {
  const TemporaryDirectory scratch;
  for (const std::int64_t step : {10, 20, 30}) {
    write_checkpoint(scratch.path(), step, 1);
  }
  begin_checkpoint(scratch.path(), 40);
  fs::create_directory(scratch.path() / ".step-00000050.partial");
  fs::create_directory(scratch.path() / ".step-00000007.deleted");
  std::ofstream(scratch.path() / ".step-00000007.deleted" / "part-00001.h5") << "half";
  fs::copy(scratch.path() / "step-00000010", scratch.path() / ".step-00000020.replaced");
  fs::rename(scratch.path() / "step-00000030", scratch.path() / ".step-00000030.replaced");
  std::ofstream(scratch.path() / "notes.txt") << "a user's own";
  prune_checkpoints(scratch.path(), 40, 2);
  EXPECT_THAT(names_in(scratch.path()),
              UnorderedElementsAre("step-00000020", "step-00000030", "notes.txt"));
}

// Writes checkpoints for ever, step after step and some steps twice, and keeps two.
[[noreturn]] void write_for_ever(const fs::path& root) {
  for (std::int64_t round = 0;; ++round) {
    const std::int64_t step = round / 2 % 5;
    write_checkpoint(root, step, 1 + round % 3, Model(static_cast<double>(step)));
    prune_checkpoints(root, 40, 2);
  }
}

TEST(CheckpointDirectory, KilledAtAnyMomentGoodOnesAreLeftAndNoOthersAreSeen) {
  const TemporaryDirectory scratch;
  write_checkpoint(scratch.path(), 0, 1, Model(0.0));
  const RandomStream random(1, RandomPurpose::kSynthesise, subject_of("kill"));
  for (std::uint64_t kill = 0; kill < 40; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      write_for_ever(scratch.path());
    }
    ::usleep(static_cast<useconds_t>(25000.0 * random.uniform(kill)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::vector<CheckpointEntry> entries = list_checkpoints(scratch.path());
    ASSERT_FALSE(entries.empty());
    for (const CheckpointEntry& entry : entries) {
      const Checkpoint checkpoint = Checkpoint::open(entry.directory);
      ASSERT_EQ(checkpoint.step(), entry.step);
      for (std::int64_t part = 0; part < checkpoint.part_count(); ++part) {
        checkpoint.verify_part(part);
      }
      ASSERT_EQ(first_weight(entry.directory), static_cast<float>(3000 + entry.step));
    }
  }
}

}  // namespace
}  // namespace strata::io::checkpoint_directory_test
