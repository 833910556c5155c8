#include "strata/train/evaluation_history.hpp"

#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "../io/data_files.hpp"

namespace strata::train::evaluation_history_test {
namespace {

using config::Best;
using io::test::TemporaryDirectory;
using io::test::write_file;

/// An evaluation after step 10, 20, 30 and so on.
struct Evaluation {
  const char* loss;  ///< as in the file
  double accuracy = 0.0;
};

struct Case {
  const char* name;
  Best by = Best::kLoss;
  std::vector<Evaluation> evaluations;
  std::int64_t best_step = 0;  ///< 0: none
  std::int64_t since_best = 0;
  const char* text = "";
  /// Of the checkpoints of the even tens of steps.
  std::int64_t best_kept = 0;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

class EvaluationHistoryTest : public testing::TestWithParam<Case> {};

TEST_P(EvaluationHistoryTest, FindsTheBest) {
  const Case& one = GetParam();
  const TemporaryDirectory directory;
  std::string lines = "{\"kind\":\"train\",\"step\":5,\"loss\":0.0}\n";
  std::vector<io::CheckpointEntry> kept;
  for (std::size_t i = 0; i < one.evaluations.size(); ++i) {
    const auto step = static_cast<std::int64_t>(10 * i + 10);
    lines += fmt::format("{{\"kind\":\"evaluate\",\"step\":{},\"loss\":{},\"accuracy\":{}}}\n",
                         step, one.evaluations[i].loss, one.evaluations[i].accuracy);
    if (step % 20 == 0) {
      kept.push_back({step, {}});
    }
  }
  write_file(directory / "metrics.jsonl", lines + "{\"kind\":\"evaluate\",\"step\":99,\"lo");
  const EvaluationHistory history(directory / "metrics.jsonl", one.by);
  const auto step_of = [](const auto& record) { return record ? record->step : 0; };
  EXPECT_EQ(step_of(history.best()), one.best_step);
  EXPECT_EQ(history.since_best(), one.since_best);
  EXPECT_EQ(step_of(history.best_of(kept)), one.best_kept);
  if (one.best_step > 0) {
    EXPECT_EQ(history.best_text(), one.text);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Histories, EvaluationHistoryTest,
    testing::Values(Case{"None", Best::kLoss, {}},
                    Case{"Loss",
                         Best::kLoss,
                         {{"3"}, {"1.5"}, {"0.25"}, {"2"}},
                         30,
                         1,
                         "0.2500 after step 30",
                         20},
                    Case{"Accuracy",
                         Best::kAccuracy,
                         {{"1", 0.5}, {"3", 0.75}, {"2", 0.5}},
                         20,
                         1,
                         "75.00 % after step 20",
                         20},
                    Case{"EarlierOfEqualOnes",
                         Best::kLoss,
                         {{"2"}, {"1"}, {"1"}, {"1"}},
                         20,
                         2,
                         "1.0000 after step 20",
                         20},
                    Case{"NotFiniteIsNoEvaluation",
                         Best::kLoss,
                         {{"null"}, {"4"}, {"null"}, {"5"}},
                         20,
                         1,
                         "4.0000 after step 20",
                         20},
                    Case{"NoneKept", Best::kLoss, {{"2"}}, 10, 0, "2.0000 after step 10", 0}),
    [](const auto& one) { return one.param.name; });

TEST(EvaluationHistory, CountsEvaluationsThatFollow) {
  const TemporaryDirectory directory;
  EvaluationHistory history(directory / "missing", Best::kLoss);
  EXPECT_EQ(history.since_best(), 0);
  for (const auto& [step, loss] : {std::pair(10, 1.0), std::pair(20, 0.5), std::pair(30, 0.75)}) {
    history.add({.step = step, .loss = loss});
  }
  EXPECT_EQ(history.best()->step, 20);
  EXPECT_EQ(history.since_best(), 1);
}

}  // namespace
}  // namespace strata::train::evaluation_history_test
