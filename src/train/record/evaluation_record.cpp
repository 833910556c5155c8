#include "record/evaluation_record.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include "strata/train/metrics.hpp"

namespace strata::train {
namespace {

std::filesystem::path note_of(const std::filesystem::path& run_directory) {
  return run_directory / "failed-evaluation.txt";
}

}  // namespace

EvaluateRecord record_of(const plan::Plan& plan, std::int64_t step,
                         const EvaluationResult& result) {
  const bool classes = plan.model->loss() == nn::LossKind::kCrossEntropy;
  return {
      .step = step,
      .loss = result.loss,
      .accuracy = classes ? std::optional(result.accuracy) : std::nullopt,
      .perplexity = is_language_model(plan) ? std::optional(std::exp(result.loss)) : std::nullopt};
}

EvaluationLeft evaluation_left(const std::filesystem::path& run_directory, std::int64_t step) {
  const std::vector<EvaluateRecord> recorded = evaluations_in(run_directory / "metrics.jsonl");
  if (std::ranges::count(recorded, step, &EvaluateRecord::step) > 0) {
    return EvaluationLeft::kNone;
  }
  std::int64_t failed = -1;
  std::ifstream note(note_of(run_directory));
  return note >> failed && failed == step ? EvaluationLeft::kFailed : EvaluationLeft::kDue;
}

void note_failed_evaluation(const std::filesystem::path& run_directory, std::int64_t step) {
  std::error_code ignored;
  // Never through a link that something else left there.
  std::filesystem::remove(note_of(run_directory), ignored);
  std::ofstream(note_of(run_directory)) << step << "\n";
}

}  // namespace strata::train
