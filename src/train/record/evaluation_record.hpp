#pragma once

#include <cstdint>
#include <filesystem>

#include "strata/train/evaluation.hpp"
#include "strata/train/metrics.hpp"

namespace strata::train {

/// The line of an evaluation in metrics.jsonl.
[[nodiscard]] EvaluateRecord record_of(const plan::Plan& plan, std::int64_t step,
                                       const EvaluationResult& result);

/// What a run that resumes after `step` does about that step's evaluation, which follows the save.
enum class EvaluationLeft { kNone, kDue, kFailed };

/// From the files of run.dir: kNone where metrics.jsonl holds the evaluation's line, kFailed where
/// the evaluation failed before.
[[nodiscard]] EvaluationLeft evaluation_left(const std::filesystem::path& run_directory,
                                             std::int64_t step);

/// Notes in run.dir that the evaluation after `step` failed, so that a resumed run trains on. Does
/// nothing where the note cannot be written.
void note_failed_evaluation(const std::filesystem::path& run_directory, std::int64_t step);

}  // namespace strata::train
