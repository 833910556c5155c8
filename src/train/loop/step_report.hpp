#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strata/train/metrics.hpp"
#include "strata/train/setup.hpp"
#include "strata/train/step_summary.hpp"
#include "strata/train/step_times.hpp"

#include "record/stragglers.hpp"
#include "replication/step_result.hpp"

namespace strata::train {

/// Writes the metrics of steps and the progress lines, on rank 0.
class StepReport {
 public:
  /// `metrics` outlives the report; training begins now, after `first_step`.
  StepReport(const TrainerSetup& setup, MetricsFile& metrics, std::int64_t first_step);

  /// Writes a progress line too where it gets the ranks' compute times, or where one is due for a
  /// step that ended without the others.
  void add(const StepResult& result, const std::optional<RankTimes>& ranks = std::nullopt);
  /// Counts time that training waited for a checkpoint.
  void add_save(double seconds) { window_save_seconds_ += seconds; }
  /// Writes the line of the steps since the last one, if there are any.
  void flush();
  /// Warns once where lines of the metrics could not be written.
  void warn_of_lost_lines(std::int64_t step);
  /// Whether a progress line is due.
  [[nodiscard]] bool is_log_step(std::int64_t step) const;

 private:
  /// Sums over the steps since the last line of the metrics.
  struct Sums {
    StepResult last;
    std::int64_t steps = 0;
    double loss = 0.0;
    double grad_norm = 0.0;
    StepTimes times;
    std::vector<std::pair<std::string, double>> numbers;  ///< of names with _max the greatest
    std::vector<nn::MicrobatchLoss::Sample> sets;
    std::vector<std::int64_t> read;  ///< of each set: tokens without padding, or samples
  };

  void add_metrics(const StepResult& result);
  /// Of a mixture: what the step has read of each set.
  void add_read_of_sets(std::int64_t step);
  /// Model FLOP/s utilization of a step of `step_seconds`.
  [[nodiscard]] std::optional<double> mfu_of(double step_seconds) const;
  void log_progress(const StepResult& result, const std::optional<RankTimes>& ranks);
  /// Warns once where the window's steps take much longer than run.machine's forecast.
  void compare_with_forecast();

  const TrainerSetup& setup_;
  MetricsFile& metrics_;
  double sample_flops_;  ///< of training; 0 where no peak is known
  Sums sums_;
  bool metrics_warned_ = false;
  std::int64_t first_step_;
  double began_;
  double last_line_ = 0.0;
  std::size_t lines_ = 0;  ///< of progress
  StepTimes window_;       ///< sums over the steps since the last line of progress
  double window_save_seconds_ = 0.0;
  std::int64_t window_steps_ = 0;
  bool slow_warned_ = false;
};

}  // namespace strata::train
