#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/config/run_config.hpp"
#include "strata/io/checkpoint.hpp"
#include "strata/train/metrics.hpp"

namespace strata::train {

/// The evaluations of a run in the order of their steps, compared by the loss, or by the accuracy
/// for config::Best::kAccuracy. Of equal ones the earlier is the better.
class EvaluationHistory {
 public:
  /// Reads a metrics file. Throws: Error(kData) where it cannot be read.
  EvaluationHistory(const std::filesystem::path& metrics, config::Best by);

  void add(const EvaluateRecord& record) { records_.push_back(record); }

  /// Nothing where there is none.
  [[nodiscard]] std::optional<EvaluateRecord> best() const;
  /// The best evaluation of one of these checkpoints.
  [[nodiscard]] std::optional<EvaluateRecord> best_of(
      const std::vector<io::CheckpointEntry>& checkpoints) const;
  /// Evaluations after the best one.
  [[nodiscard]] std::int64_t since_best() const;

  /// "the test loss" or "the test accuracy".
  [[nodiscard]] std::string watched_name() const;
  /// As in "0.1234 after step 40". Pre: there is one.
  [[nodiscard]] std::string best_text() const;

 private:
  [[nodiscard]] bool better(const EvaluateRecord& left, const EvaluateRecord& right) const;
  template <typename Accepts>
  [[nodiscard]] std::optional<EvaluateRecord> best_where(Accepts accepts) const;

  config::Best by_;
  std::vector<EvaluateRecord> records_;
};

/// The checkpoint of `run_directory` that is best by `by`.
/// Throws: Error(kUsage) where `by` is kOff; Error(kCheckpoint) where no checkpoint was evaluated.
[[nodiscard]] io::CheckpointEntry best_checkpoint(const std::filesystem::path& run_directory,
                                                  config::Best by);

}  // namespace strata::train
