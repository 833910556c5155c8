// A small GPT trained on grids of threads: the same numbers everywhere (design law 1).
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "strata/core/random.hpp"

#include "../io/data_files.hpp"
#include "small_run.hpp"

namespace strata::train::test {
namespace {

constexpr std::int64_t kVocabulary = 29;

/// Tokens of which each follows from the one before, but for every fifth or so.
std::string small_text() {
  const RandomStream stream(41, RandomPurpose::kSynthesise, 0);
  std::vector<std::uint16_t> tokens{3};
  for (std::uint64_t i = 1; i < 420; ++i) {
    const auto drawn = static_cast<std::int64_t>(5.0 * kVocabulary * stream.uniform(i));
    tokens.push_back(static_cast<std::uint16_t>(
        drawn < kVocabulary ? drawn : (5 * tokens.back() + 2) % kVocabulary));
  }
  return io::test::raw_bytes(std::span<const std::uint16_t>(tokens));
}

class LanguageRun : public testing::TestWithParam<DType>, protected RunsInADirectory {
 protected:
  LanguageRun() {
    io::test::write_file(directory_ / "tokens.bin", small_text());
    io::ImportOptions import;
    import.format = io::ImportFormat::kNanoGptTokens;
    import.inputs = {directory_ / "tokens.bin"};
    import.vocabulary = kVocabulary;
    import.split = "340,80";
    import.output = directory_ / "data";
    read_data(io::import_dataset(import));
    set_optimizer(0.01, 4);
    base_.model.transformer = {.preset = nn::Preset::kGpt,
                               .blocks = 1,
                               .width = 16,
                               .heads = 4,
                               .context = 8,
                               .dropout = 0.1};
    base_.batch.global = 8;
    base_.batch.micro = 2;
    base_.numerics.lanes = 2;
    base_.numerics.shards = 2;
    base_.numerics.dtype = GetParam();
    base_.checkpoint.every = 2;
  }
};

TEST_P(LanguageRun, GivesTheSameNumbersOnEveryGrid) {
  const RunResult alone = run_on(config("alone"), {1, 1, 1});
  ASSERT_EQ(alone.metrics.size(), 4U + 2U);
  EXPECT_NE(alone.metrics[0].at("loss"), alone.metrics[1].at("loss"));
  EXPECT_GT(alone.metrics[0].at("grad_norm").get<double>(), base_.optimizer.clip_norm);
  // About the entropy of a draw among all ids, before the first update.
  EXPECT_NEAR(alone.metrics[0].at("loss").get<double>(), std::log(kVocabulary), 0.2);
  struct Case {
    grid::Grid grid;
    plan::Sequence sequence = plan::Sequence::kOff;
    nn::Recompute recompute = nn::Recompute::kNone;
  };
  for (const Case& c : {Case{{2, 1, 1}},
                        {{1, 2, 1}},
                        {{1, 1, 2}},
                        {{1, 5, 1}, plan::Sequence::kOff, nn::Recompute::kFull},
                        {{2, 2, 1}, plan::Sequence::kOff, nn::Recompute::kSelective},
                        {{2, 1, 2}, plan::Sequence::kOn},
                        {{1, 2, 2}, plan::Sequence::kOn, nn::Recompute::kSelective},
                        {{2, 2, 2}},
                        {{1, 1, 1}, plan::Sequence::kOn, nn::Recompute::kFull}}) {
    const std::string where = fmt::format("on {}, sequence {}, recompute {}", c.grid.text(),
                                          name_of(c.sequence), name_of(c.recompute));
    plan::RunConfig run = config(where);
    run.parallel.sequence = c.sequence;
    run.train.recompute = c.recompute;
    expect_same(run_on(run, c.grid), alone, where);
  }
}

TEST_P(LanguageRun, ContinuesOnAnotherGridAsIfNeverStopped) {
  const RunResult whole = run_on(config("whole"), {1, 1, 1});
  struct Case {
    std::string name;
    grid::Grid first;
    grid::Grid second;
  };
  for (const Case& c : {Case{"from data and pipeline to tensor", {2, 2, 1}, {1, 1, 2}},
                        Case{"from tensor and pipeline to one", {1, 2, 2}, {1, 1, 1}},
                        Case{"from one to all axes", {1, 1, 1}, {2, 2, 2}}}) {
    plan::RunConfig first = config(c.name);
    first.train.steps = 2;
    run_on(first, c.first);
    plan::RunConfig second = config(c.name);
    second.run.resume = plan::Resume::kAuto;
    second.numerics.lanes = 0;  // the checkpoint's
    second.numerics.shards = 0;
    second.batch.micro = 0;
    second.parallel.sequence = plan::Sequence::kOn;
    expect_same(run_on(second, c.second), whole, c.name);
  }
}

TEST_P(LanguageRun, TrainsALlama) {
  plan::RunConfig llama = config("llama");
  llama.model.transformer = {.preset = nn::Preset::kLlama,
                             .blocks = 1,
                             .width = 16,
                             .heads = 4,
                             .kv_heads = 2,
                             .hidden = 24,
                             .context = 8};
  const RunResult alone = run_on(llama, {1, 1, 1});
  llama.run.dir = (directory_ / "llama on eight").string();
  llama.parallel.sequence = plan::Sequence::kOn;
  expect_same(run_on(llama, {2, 2, 2}), alone, "on eight ranks");
}

INSTANTIATE_TEST_SUITE_P(DTypes, LanguageRun, testing::Values(DType::kFloat32, DType::kBfloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace strata::train::test
