#include "strata/train/evaluation_history.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::train {

EvaluationHistory::EvaluationHistory(const std::filesystem::path& metrics, config::Best by)
    : by_(by), records_(evaluations_in(metrics)) {}

bool EvaluationHistory::better(const EvaluateRecord& left, const EvaluateRecord& right) const {
  return by_ == config::Best::kAccuracy ? left.accuracy.value_or(0.0) > right.accuracy.value_or(0.0)
                                        : left.loss < right.loss;
}

template <typename Accepts>
std::optional<EvaluateRecord> EvaluationHistory::best_where(Accepts accepts) const {
  std::optional<EvaluateRecord> best;
  for (const EvaluateRecord& record : records_) {
    if (accepts(record) && (!best || better(record, *best))) {
      best = record;
    }
  }
  return best;
}

std::optional<EvaluateRecord> EvaluationHistory::best() const {
  return best_where([](const EvaluateRecord&) { return true; });
}

std::optional<EvaluateRecord> EvaluationHistory::best_of(
    const std::vector<io::CheckpointEntry>& checkpoints) const {
  std::set<std::int64_t> steps;
  for (const io::CheckpointEntry& entry : checkpoints) {
    steps.insert(entry.step);
  }
  return best_where([&](const EvaluateRecord& record) { return steps.contains(record.step); });
}

std::int64_t EvaluationHistory::since_best() const {
  const std::optional<EvaluateRecord> found = best();
  return std::ranges::count_if(
      records_, [&](const EvaluateRecord& record) { return found && record.step > found->step; });
}

std::string EvaluationHistory::watched_name() const {
  return by_ == config::Best::kAccuracy ? "the test accuracy" : "the test loss";
}

std::string EvaluationHistory::best_text() const {
  const EvaluateRecord found = best().value();
  return by_ == config::Best::kAccuracy
             ? fmt::format("{:.2f} % after step {}", 100.0 * found.accuracy.value_or(0.0),
                           found.step)
             : fmt::format("{} after step {}", number_text(found.loss), found.step);
}

io::CheckpointEntry best_checkpoint(const std::filesystem::path& run_directory, config::Best by) {
  if (by == config::Best::kOff) {
    fail(ExitCode::kUsage,
         "checkpoint.best is off in {}, so that no checkpoint is kept as its best; leave "
         "--checkpoint=best out, or train with checkpoint.best = loss",
         run_directory.string());
  }
  const auto entries = io::list_checkpoints(run_directory / "checkpoints");
  const auto best = EvaluationHistory(run_directory / "metrics.jsonl", by).best_of(entries);
  if (!best) {
    fail(ExitCode::kCheckpoint,
         "no checkpoint in {} has an evaluation in metrics.jsonl; leave --checkpoint=best out to "
         "take the newest",
         (run_directory / "checkpoints").string());
  }
  return *std::ranges::find(entries, best->step, &io::CheckpointEntry::step);
}

}  // namespace strata::train
